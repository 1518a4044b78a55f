-- Parameters: number (the customer's).
select mail
from customers
where number = %(number)s;
