-- The customers of the example shop: where their invoices go.
create table if not exists customers (
    number text primary key,
    mail text not null
);
