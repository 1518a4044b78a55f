"""Send, recall, receive and ack with an ``AsyncSession``, on asyncpg or psycopg 3.

In ``text()`` a cast is ``cast(:number as bigint)``: it takes ``:number::bigint`` for another parameter.
"""

import asyncio
import os
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

INSERT = text("insert into orders (number) values (:number)")
SEND = text("""
    select message_id from duewheel.send(
        'order-timeout', jsonb_build_object('order', cast(:number as bigint)),
        delay => cast(:delay as interval), key => cast(:key as text))
""")
PAY = text("update orders set paid_at = now() where number = :number")
RECALL = text("select outcome from duewheel.recall_key('order-timeout', cast(:key as text))")
RECEIVE = text("select receipt_handle, key from duewheel.receive('order-timeout', 'canceller')")
CANCEL = text("""
    update orders set cancelled_at = now() where number = any (cast(:numbers as bigint[]))
    and paid_at is null and cancelled_at is null returning number
""")
ACK = text("select duewheel.ack(cast(:handles as text[]))")


async def place(session, number, delay):
    async with session.begin():
        await session.execute(INSERT, {"number": number})
        await session.execute(SEND, {"number": number, "key": str(number), "delay": delay})


async def pay(session, number):
    async with session.begin():
        await session.execute(PAY, {"number": number})
        return await session.scalar(RECALL, {"key": str(number)})


async def cancel_due(engine, session):
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(text("call duewheel.tick('order-timeout')"))
    async with session.begin():
        messages = (await session.execute(RECEIVE)).all()
    async with session.begin():
        numbers = [int(message.key) for message in messages]
        cancelled = (await session.scalars(CANCEL, {"numbers": numbers})).all()
        await session.execute(ACK, {"handles": [message.receipt_handle for message in messages]})
    return cancelled


async def main():
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with AsyncSession(engine) as session:
        await place(session, 4711, timedelta(minutes=30))
        await place(session, 4712, timedelta(0))
        print("4711:", await pay(session, 4711))
        print("cancelled:", await cancel_due(engine, session))
    await engine.dispose()


asyncio.run(main())
