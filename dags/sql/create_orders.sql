-- The orders of the example shop. They live in the broker's database, so that an order and its timeout message are
-- written in one transaction.
create table if not exists orders (
    number bigint generated always as identity primary key,
    amount numeric(10, 2) not null,
    placed_at timestamptz not null,
    -- An order that is not paid by then is cancelled.
    pay_by timestamptz not null,
    paid_at timestamptz,
    -- When its timeout was handled; one that was recalled never comes.
    timeout_came_at timestamptz,
    cancelled_at timestamptz
);
