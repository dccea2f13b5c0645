"""The paddock and the proxy do not know each other: here they are held to one signature."""

import asyncio
import inspect

import pytest
from dressage_paddock.gateway import GatewaySession, ModelGateway
from dressage_proxy.client import Finalized, OpenSession, ProxyClient


def test_the_proxy_client_is_a_model_gateway() -> None:
    client = ProxyClient("http://127.0.0.1:1", "a control key of tests")
    assert isinstance(client, ModelGateway)
    asyncio.run(client.close())


@pytest.mark.parametrize("name", ["open", "finalize", "delete"])
def test_the_proxy_client_takes_what_the_gateway_protocol_gives(name: str) -> None:
    asked = inspect.signature(getattr(ModelGateway, name)).parameters
    taken = inspect.signature(getattr(ProxyClient, name)).parameters
    assert {key: (p.kind, p.default) for key, p in asked.items()}.items() <= {
        key: (p.kind, p.default) for key, p in taken.items()
    }.items()
    own = [p for key, p in taken.items() if key not in asked]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is None for p in own)  # nobody has to give them


def test_the_proxy_clients_results_have_the_fields_that_the_protocol_names() -> None:
    assert set(GatewaySession.__dataclass_fields__) <= set(OpenSession.__dataclass_fields__)
    assert {"segments", "trained_tokens", "lost_tokens"} <= set(Finalized.__dataclass_fields__)
