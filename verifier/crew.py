"""Many calls to a server at a time, for code that waits for their results one by one.

In: jobs, in the order in which they are to begin, and a coroutine that does one. Out: their results as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, TypeVar

Client = TypeVar("Client")
Job = TypeVar("Job")
Result = TypeVar("Result")


def results_of(
    client: AbstractAsyncContextManager[Client],
    jobs: Iterator[Job],
    work: Callable[[Client, Job], Awaitable[Result]],
    workers: int,
) -> Iterator[Result]:
    """Results of `work(client, job)`, `workers` at a time; a worker takes the next job when it is free, so `jobs` may be
    made as they are needed, in the event loop. Whatever a job raises is raised here and ends the rest. Calls proceed
    while the caller waits for the next result."""
    crew = _Crew(client, jobs, work)
    with event_loop() as run:
        try:
            run(crew.start(workers))
            while results := run(crew.next()):
                yield from results
        finally:
            run(crew.stop())


@contextmanager
def event_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs coroutines one after the other to their ends, in an event loop of their own. Where a loop is running already,
    as in a notebook, that is in another thread, for which this one waits: nothing else happens in the meantime."""
    try:
        asyncio.get_running_loop()
        kind = _RunnerInThread
    except RuntimeError:
        kind = asyncio.Runner
    with kind() as runner:
        yield runner.run


class _RunnerInThread:
    def __init__(self):
        self._runner, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def __enter__(self) -> _RunnerInThread:
        return self

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        future = self._thread.submit(self._runner.run, coroutine)
        try:
            return future.result()
        except KeyboardInterrupt:
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            raise

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


class _Crew(Generic[Client, Job, Result]):
    def __init__(self, client: AbstractAsyncContextManager[Client], jobs: Iterator[Job], work: Any):
        self.client, self.jobs, self.work = client, jobs, work
        self.results: asyncio.Queue[Result] = asyncio.Queue()
        self.workers: set[asyncio.Task[None]] = set()

    async def start(self, workers: int) -> None:
        client = await self.client.__aenter__()
        self.workers = {asyncio.create_task(self._work(client)) for _ in range(workers)}

    async def _work(self, client: Client) -> None:
        for job in self.jobs:  # shared: each worker takes the next one
            await self.results.put(await self.work(client, job))

    async def next(self) -> list[Result]:
        """At least one result; none at the end."""
        while self.results.empty() and self.workers:
            coming = asyncio.create_task(self.results.get())
            done, _ = await asyncio.wait({coming, *self.workers}, return_when=asyncio.FIRST_COMPLETED)
            if coming in done:
                return [coming.result(), *self._ready()]
            coming.cancel()
            for worker in done:
                self.workers.discard(worker)  # pyright: ignore[reportArgumentType]
                worker.result()
        return self._ready()

    def _ready(self) -> list[Result]:
        return [self.results.get_nowait() for _ in range(self.results.qsize())]

    async def stop(self) -> None:
        for worker in self.workers:
            worker.cancel()
        await asyncio.gather(*self.workers, return_exceptions=True)
        await self.client.__aexit__(None, None, None)
