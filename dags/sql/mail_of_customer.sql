-- Parameters: number (of the customer).
select mail
from customers
where number = %(number)s;
