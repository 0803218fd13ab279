"""From a plan to batches in the trainer's hands: threads or worker processes, devices, state, metrics."""
