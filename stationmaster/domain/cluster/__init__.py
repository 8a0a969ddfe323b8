"""One cluster: what it is made of, who leases it, and its life from request to release."""
