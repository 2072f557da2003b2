"""Conversations: memory plan, choice of drafters, answers, and the resources that sessions share."""
