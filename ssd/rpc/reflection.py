"""Server reflection as grpcurl, grpcui and Postman ask for it: both versions, and symbols down to methods."""

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"


class _Pool:
    """The process's descriptors, with methods among the symbols: the default pool alone does not find them."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - protobuf's name
        """The file that defines a message, enum, field, service or method; KeyError if there is none."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Serve reflection for these full service names."""
    servicer = reflection.aio.ReflectionServicer(service_names=(*services, V1, V1ALPHA), pool=_Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    # v1 and v1alpha have the same messages; grpcio ships only the older name and newer tools ask for the other.
    for name in (V1, V1ALPHA):
        generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((generic,))
