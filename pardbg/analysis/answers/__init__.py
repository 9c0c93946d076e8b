"""What screens, reports and checks ask for: each answer put together from the rooms below."""
