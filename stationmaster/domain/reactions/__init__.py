"""What follows when something is seen: of a run (`run`), and of a cluster (`cluster`). Pure."""
