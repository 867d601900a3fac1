"""Pure mathematics on tensors: Gaussians, supports, criteria, allocation, schedules."""
