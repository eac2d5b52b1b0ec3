"""gRPC plumbing shared by the services: channel options, statuses, the server shell, the engine's thread."""
