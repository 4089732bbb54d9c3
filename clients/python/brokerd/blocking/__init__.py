"""The blocking client, on grpc and threads."""
