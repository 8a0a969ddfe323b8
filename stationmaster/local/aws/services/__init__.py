"""AWS services that moto lacks or emulates too coarsely, served by this endpoint itself."""
