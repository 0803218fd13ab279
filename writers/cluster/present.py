"""Which workers a scheduler has: asked anew each time, and told from its answer only.

`Client.scheduler_info` keeps the answer where a timer of the client puts one without any workers every two seconds:
read between the two, all workers seem gone.
"""

from distributed import Client

_ANSWER_SECONDS = 10.0


def present_workers(client: Client, at_most: int = -1) -> list[str] | None:
    """Return the addresses of workers, of all by default; None while the scheduler does not answer."""
    scheduler = client.scheduler
    if client.status != "running" or scheduler is None:
        return None
    try:
        answer = client.sync(  # type: ignore[no-untyped-call]
            scheduler.identity, n_workers=at_most, callback_timeout=_ANSWER_SECONDS
        )
    except OSError:
        return None
    return list(answer["workers"])
