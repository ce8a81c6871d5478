// SPDX-License-Identifier: MIT OR Apache-2.0
//! RabbitMQ, and the `epmd` with which an Erlang node registers. Without ours, the node would start
//! its own `epmd`, which would outlive the node.

use std::io;
use std::path::Path;

use super::account::Account;
use super::install::Tools;
use super::server::Server;
use super::site::Site;
use super::wire;

const EPMD: &str = "rabbitmq-epmd";
const NODE: &str = "rabbitmq";
/// The address for TLS. It differs from the AMQP address, so both can use the same port number.
const TLS_HOST: &str = "127.0.0.3";

/// Returns the servers in the order in which they start.
pub(super) fn servers(site: &Site, tools: &Tools) -> io::Result<Vec<Server>> {
    Ok(vec![epmd(site, tools)?, node(site, tools)?])
}

fn epmd(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (dir, port) = (site.dir(EPMD), site.port(EPMD));
    let program = [
        tools.path("epmd")?,
        "-port".into(),
        port.to_string(),
        "-address".into(),
        "127.0.0.1".into(),
    ];
    // epmd writes no pid file, so the shell writes the file before it becomes epmd.
    let shell = ["sh", "-c", r#"echo $$ >data/pid && exec "$0" "$@""#].map(String::from);
    Ok(Server {
        name: EPMD,
        port,
        account: Account::pick(&["rabbitmq", "nobody"])?,
        files: Vec::new(),
        prepare: Vec::new(),
        command: [&shell[..], &program].concat(),
        dir,
        ready: wire::epmd,
    })
}

fn node(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (dir, port) = (site.dir(NODE), site.port(NODE));
    let inside = |name: &str| dir.join(name).display().to_string();
    let settings = format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\nlisteners.ssl.1 = {TLS_HOST}:{port}\n\
         ssl_options.cacertfile = {}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
         ssl_options.verify = verify_none\nlog.console = true\nlog.console.level = warning\nlog.file = false\n\
         # The tests must pass even if the disk is nearly full.\ndisk_free_limit.absolute = 1MB\n",
        inside("data/ca.pem"),
        inside("data/cert.pem"),
        inside("data/key.pem"),
    );
    // Do not use the `rabbitmq-server` on PATH: it is a wrapper that changes to another user. The
    // real script is in RabbitMQ's own folder.
    let folder = tools.path("rabbitmq-env")?;
    let program = Path::new(&folder).with_file_name("rabbitmq-server").display().to_string();
    let mut command = vec!["env".to_string()];
    command.extend([
        format!("HOME={}", inside("data")),
        format!("ERL_EPMD_PORT={}", site.port(EPMD)),
        "ERL_EPMD_ADDRESS=127.0.0.1".into(),
        "RABBITMQ_NODENAME=retryproof@localhost".into(),
        // The port for connections from other nodes. It can have the number of the AMQP port,
        // because it is on another address.
        format!("RABBITMQ_DIST_PORT={port}"),
        format!("RABBITMQ_CONFIG_FILE={}", inside("rabbitmq.conf")),
        format!("RABBITMQ_ENABLED_PLUGINS_FILE={}", inside("plugins")),
        format!("RABBITMQ_MNESIA_BASE={}", inside("data/mnesia")),
        format!("RABBITMQ_LOG_BASE={}", inside("data/log")),
        format!("RABBITMQ_PID_FILE={}", inside("data/pid")),
        // With this setting, the script's process becomes the node instead of waiting for it. The
        // node needs no terminal in either case.
        "RABBITMQ_ALLOW_INPUT=1".into(),
        program,
        "-noinput".into(),
        "-kernel".into(),
        "inet_dist_use_interface".into(),
        "{127,0,0,2}".into(),
    ]);
    Ok(Server {
        name: NODE,
        port,
        account: Account::pick(&["rabbitmq", "nobody"])?,
        files: vec![
            ("rabbitmq.conf", settings),
            ("plugins", "[].\n".into()),
            ("tls.ext", format!("subjectAltName=IP:{TLS_HOST}\nbasicConstraints=CA:FALSE\n")),
        ],
        prepare: certificate(&tools.path("openssl")?),
        command,
        dir,
        ready: wire::rabbitmq,
    })
}

/// Creates a certificate authority for this server, and a certificate that it signs.
fn certificate(openssl: &str) -> Vec<(Vec<String>, String)> {
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj";
    let commands = [
        format!(
            "{new} /CN=retryproof-authority -x509 -days 3650 -keyout data/ca.key -out data/ca.pem"
        ),
        format!("{new} /CN=retryproof-rabbitmq -keyout data/key.pem -out data/request.pem"),
        "x509 -req -in data/request.pem -CA data/ca.pem -CAkey data/ca.key -CAcreateserial -days \
         3650 -extfile tls.ext -out data/cert.pem"
            .into(),
    ];
    let words =
        |line: String| std::iter::once(openssl).chain(line.split(' ')).map(str::to_owned).collect();
    commands.into_iter().map(|line| (words(line), String::new())).collect()
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    let port = site.port(NODE);
    vec![
        ("RABBITMQ", format!("amqp://guest:guest@127.0.0.1:{port}")),
        ("RABBITMQ_TLS", format!("amqps://guest:guest@{TLS_HOST}:{port}")),
        ("RABBITMQ_TLS_ROOT", site.dir(NODE).join("data/ca.pem").display().to_string()),
    ]
}
