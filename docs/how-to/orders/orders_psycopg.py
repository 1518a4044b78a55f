"""Send, recall, receive and ack with psycopg 3 alone."""

import os

import psycopg

SEND = """
    select from duewheel.send('order-timeout', jsonb_build_object('order', %(number)s::bigint),
                              delay => %(delay)s::interval, key => %(number)s::text)
"""


def place(connection, number, delay):
    with connection.transaction():
        connection.execute("insert into orders (number) values (%s)", (number,))
        connection.execute(SEND, {"number": number, "delay": delay})


def pay(connection, number):
    with connection.transaction():
        connection.execute("update orders set paid_at = now() where number = %s", (number,))
        recall = "select outcome from duewheel.recall_key('order-timeout', %s)"
        (outcome,) = connection.execute(recall, (str(number),)).fetchone()
    return outcome


def cancel_due(connection):
    connection.execute("call duewheel.tick('order-timeout')")
    receive = "select receipt_handle, key from duewheel.receive('order-timeout', 'canceller')"
    messages = connection.execute(receive).fetchall()
    handles = [handle for handle, _ in messages]
    numbers = [int(key) for _, key in messages]
    with connection.transaction():
        cancelled = connection.execute(
            "update orders set cancelled_at = now()"
            " where number = any (%s) and paid_at is null and cancelled_at is null returning number",
            (numbers,),
        ).fetchall()
        connection.execute("select duewheel.ack(%s)", (handles,))
    return [number for (number,) in cancelled]


with psycopg.connect(os.environ["DUEWHEEL_DSN"], autocommit=True) as connection:
    place(connection, 4711, "30 minutes")
    place(connection, 4712, "0")
    print("4711:", pay(connection, 4711))
    print("cancelled:", cancel_due(connection))
