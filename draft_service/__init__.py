"""The draft: anticipates how the target's rounds may end and prepares the proposal that would follow each outcome."""
