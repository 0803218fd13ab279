"""Ways out: manifests of other tools that point into our shards, or at files taken out of them; one file a layout."""
