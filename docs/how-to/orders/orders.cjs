const { Client } = require("pg");

async function inTransaction(client, work) {
  await client.query("begin");
  try {
    const result = await work();
    await client.query("commit");
    return result;
  } catch (error) {
    await client.query("rollback");
    throw error;
  }
}

function place(client, number, delay) {
  return inTransaction(client, async () => {
    await client.query("insert into orders (number) values ($1)", [number]);
    await client.query(
      "select from duewheel.send('order-timeout', $1::jsonb, delay => $2::interval, key => $3)",
      [{ order: number }, delay, String(number)],
    );
  });
}

function pay(client, number) {
  return inTransaction(client, async () => {
    await client.query("update orders set paid_at = now() where number = $1", [number]);
    const { rows } = await client.query(
      "select outcome from duewheel.recall_key('order-timeout', $1)",
      [String(number)],
    );
    return rows[0].outcome;
  });
}

async function cancelDue(client) {
  await client.query("call duewheel.tick('order-timeout')");
  const { rows: messages } = await client.query(
    "select receipt_handle, key from duewheel.receive('order-timeout', 'canceller')",
  );
  return inTransaction(client, async () => {
    const { rows: cancelled } = await client.query(
      "update orders set cancelled_at = now()" +
        " where number = any ($1::bigint[]) and paid_at is null and cancelled_at is null returning number",
      [messages.map((message) => message.key)],
    );
    await client.query("select duewheel.ack($1)", [
      messages.map((message) => message.receipt_handle),
    ]);
    // A bigint arrives as text, since a number of JavaScript could not hold each one.
    return cancelled.map((order) => Number(order.number));
  });
}

async function main() {
  const client = new Client({ connectionString: process.env.DUEWHEEL_DSN });
  await client.connect();
  try {
    await place(client, 4711, "30 minutes");
    await place(client, 4712, "0");
    console.log(`4711: ${await pay(client, 4711)}`);
    console.log(`cancelled: ${JSON.stringify(await cancelDue(client))}`);
  } finally {
    await client.end();
  }
}

main();
