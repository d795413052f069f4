# Installs and starts what some tests need, where it is possible; those tests skip with a message elsewhere.
# Sets FEDPEER_TEST_POSTGRESQL to the URL of a scratch server.

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    if [ ! -d /usr/share/datasets/fashion-mnist ] || ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
        apt-get update -qq
        apt-get install -y -qq dataset-fashion-mnist postgresql >/dev/null
    fi
    # promtool, which checks the rules of monitoring/.
    if ! command -v promtool >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1 ||
            echo "no promtool could be installed: its tests skip"
    fi
    # Proxies that operators put before a coordinator; the daemons that apt starts are not used.
    if ! command -v nginx >/dev/null || ! command -v haproxy >/dev/null || ! command -v nghttpx >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq nginx libnginx-mod-stream haproxy nghttp2-proxy >/dev/null 2>&1 ||
            echo "no proxies could be installed: their tests skip"
    fi
fi

pg_bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1 || true)
if [ -n "$pg_bin" ]; then
    pg_dir=$(mktemp -d /tmp/fedpeer-pg.XXXXXX)
    as_user() { "$@"; }
    if [ "$(id -u)" = 0 ]; then    # initdb refuses to run as root
        chown postgres "$pg_dir"
        as_user() { runuser -u postgres -- "$@"; }
    fi
    (
        cd /
        as_user "$pg_bin/initdb" -D "$pg_dir/data" -A trust -U fedpeer >/dev/null
        # It is never killed, so that nothing has to be on the disk.
        as_user "$pg_bin/pg_ctl" -D "$pg_dir/data" -w -l "$pg_dir/log" \
            -o "-k $pg_dir -c listen_addresses='' -c max_connections=300 -c fsync=off -c full_page_writes=off" \
            start >/dev/null
    )
    stop_postgresql() { (cd / && as_user "$pg_bin/pg_ctl" -D "$pg_dir/data" -m immediate stop >/dev/null); rm -rf "$pg_dir"; }
    trap stop_postgresql EXIT
    (cd / && as_user "$pg_bin/createdb" -h "$pg_dir" -U fedpeer fedpeer)
    export FEDPEER_TEST_POSTGRESQL="postgresql+psycopg://fedpeer@/fedpeer?host=$pg_dir"
fi
