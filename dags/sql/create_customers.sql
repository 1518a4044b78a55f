-- The customers of the example shop, and the addresses for their invoices.
create table if not exists customers (
    number text primary key,
    mail text not null
);
