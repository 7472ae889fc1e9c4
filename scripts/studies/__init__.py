"""What `claimwise study NAME` runs and tells: experiments in the digits world."""
