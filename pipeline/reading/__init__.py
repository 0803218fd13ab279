"""From a batch of the plan to samples: spans, checks, decoding, buffers, Batch."""
