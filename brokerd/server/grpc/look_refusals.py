"""What looks at queues and jobs on them are refused for, as statuses of gRPC.

For the parts of the Admin service that show and start them: admin_browse.py, admin_triage.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from brokerd.amqp import errors
from brokerd.core.triage.jobs import JobError
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.grpc import rpc_errors
from brokerd.server.listings.job_ports import JobRefused
from brokerd.server.listings.look_guard import BrowseRefused, TooManyBrowses
from brokerd.server.members.browse_calls import Overloaded

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@contextlib.asynccontextmanager
async def told(context: Context) -> AsyncIterator[None]:
    """End the call with what was refused, as the status that fits."""
    try:
        yield
    except (BrowseRefused, JobRefused) as error:
        code = error.refused.code
        await rpc_errors.abort(context, errors.ProtocolError(str(error), code=code))
    except JobError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except TooManyBrowses as error:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
    except (Unavailable, Overloaded) as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
