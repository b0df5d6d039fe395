"""Cluster sharding for Python: entities addressed by (type, id), moved and kept by a cluster of
nodes."""

from shardbus.app import ShardBus
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.blocking import Client
from shardbus.entities.context import Context
from shardbus.entities.entity_type import Directive, StopReason
from shardbus.entities.passivation_settings import Passivation
from shardbus.entity import Entity, behaviour, handler
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    DeliveryFailed,
    EntityFailed,
    JournalConflict,
    KeyReused,
    LocalProtocolError,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    ProtocolError,
    ReentrancyError,
    Refused,
    Rejection,
    RemoteProtocolError,
    RequestError,
    SchemaError,
    ShardBusError,
    StaleActivation,
    StaleEpoch,
    StaleFence,
    StateTooLarge,
    StateUnreadable,
    StoreError,
    StoreUnavailable,
    Unhandled,
    UnknownEntityType,
    ValueRefused,
)
from shardbus.event_sourced import EventSourced, event
from shardbus.projection import Projection
from shardbus.routing.region import Envelope, Region, StartEntity
from shardbus.sharding.allocation.strategies import (
    ConsistentHashing,
    LeastShard,
    LeastShardThreshold,
)
from shardbus.sharding.handoff_modes import HandoffMode as Handoff
from shardbus.sharding.instances import Instances

__all__ = [
    "AskTimeout", "AsyncClient", "BufferFull", "Client", "ConfigError", "ConsistentHashing",
    "Context", "DeliveryFailed", "Directive", "Entity", "EntityFailed", "Envelope", "EventSourced",
    "Instances", "Handoff", "JournalConflict", "KeyReused", "LeastShard", "LeastShardThreshold",
    "LocalProtocolError", "MailboxFull", "MessageTooLarge", "NodeLost", "Passivation", "Projection",
    "ProtocolError", "ReentrancyError", "Refused", "Region", "Rejection", "RemoteProtocolError",
    "RequestError", "SchemaError", "ShardBus", "ShardBusError", "StaleEpoch", "StaleActivation",
    "StaleFence", "StateTooLarge", "StateUnreadable", "StartEntity", "StopReason", "StoreError",
    "StoreUnavailable", "Unhandled", "UnknownEntityType", "ValueRefused", "behaviour", "event",
    "handler",
]  # fmt: skip
