import java.sql.*;

public class Orders {
    static Connection db;

    public static void main(String[] arguments) throws SQLException {
        try (var connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            db = connection;
            db.setAutoCommit(false);  // From now on a transaction ends with commit().
            place(4711, "30 minutes");
            place(4712, "0");
            System.out.println("4711: " + pay(4711));
            System.out.println("cancelled: " + cancelDue());
        }
    }

    static void place(long number, String delay) throws SQLException {
        query("insert into orders (number) values (?) returning number", number);
        query("select message_id from duewheel.send('order-timeout', jsonb_build_object('order', ?),"
              + " delay => ?::interval, key => ?::text)", number, delay, number);
        db.commit();
    }

    static Object pay(long number) throws SQLException {
        query("update orders set paid_at = now() where number = ? returning number", number);
        var outcome = query("select outcome from duewheel.recall_key('order-timeout', ?::text)", number)[0];
        db.commit();
        return outcome;
    }

    static Object cancelDue() throws SQLException {
        db.setAutoCommit(true);
        try (var tick = db.createStatement()) {
            tick.execute("call duewheel.tick('order-timeout')");
        }
        db.setAutoCommit(false);
        var messages = query("select coalesce(array_agg(receipt_handle), '{}'), coalesce(array_agg(key), '{}')"
                             + " from duewheel.receive('order-timeout', 'canceller')");
        db.commit();  // The lease holds from here on.
        var cancelled = query(
            "with cancelled as (update orders set cancelled_at = now() where number = any (?::bigint[])"
            + " and paid_at is null and cancelled_at is null returning number)"
            + " select coalesce(json_agg(number), '[]') from cancelled", messages[1])[0];
        query("select duewheel.ack(?)", messages[0]);
        db.commit();
        return cancelled;
    }

    /** Runs a statement and returns its row. */
    static Object[] query(String sql, Object... values) throws SQLException {
        try (var statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setObject(i + 1, values[i]);
            }
            try (var rows = statement.executeQuery()) {
                rows.next();
                var row = new Object[rows.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++) {
                    row[i] = rows.getObject(i + 1);
                }
                return row;
            }
        }
    }
}
