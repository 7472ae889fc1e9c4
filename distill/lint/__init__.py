"""What `claimwise rubrics lint` finds: rules for each kind of fault, a model where they cannot decide, and mending."""
