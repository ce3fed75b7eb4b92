//! Network namespaces: one for the server and one for each host, joined by a pair of virtual Ethernet devices each. A link is cut in
//! one direction by a wrong hardware address of the other end: frames are dropped without an error, as by a broken switch.

use std::process::{Child, Command, Stdio};

use crate::fixtures::{eventually, skip};

/// A namespace, which lasts as long as the process that holds it.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Namespace {
        let mut hold = Command::new("unshare");
        hold.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let namespace = Namespace { holder: hold.spawn().expect("unshare") };
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        let path = format!("/proc/{}/ns/net", namespace.holder.id());
        eventually("the namespace exists", || std::fs::read_link(&path).is_ok_and(|its| its != own));
        namespace
    }

    /// A command that runs in it; its arguments follow.
    fn within(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program);
        command
    }

    fn run(&self, line: &str) {
        let mut words = line.split(' ');
        let mut command = self.within(words.next().expect("a program"));
        let output = command.args(words).output().expect("nsenter");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        crate::fixtures::end(&mut self.holder);
    }
}

/// The directions of a link that work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Works {
    pub(crate) to_server: bool,
    pub(crate) to_host: bool,
}

impl Works {
    pub(crate) const BOTH: Works = Works { to_server: true, to_host: true };
    pub(crate) const NEITHER: Works = Works { to_server: false, to_host: false };
}

/// The network of a server and some hosts.
pub(crate) struct Network {
    server: Namespace,
    hosts: Vec<Namespace>,
}

/// An address that no device has.
const UNUSED: &str = "02:00:00:00:ff:ff";

impl Network {
    /// `None` where this process may not make namespaces.
    pub(crate) fn new(hosts: usize) -> Option<Network> {
        // Root, iproute2 and util-linux.
        let works = Command::new("unshare").args(["--net", "ip", "link", "add", "h0", "type", "veth"]).output();
        if !works.is_ok_and(|output| output.status.success()) {
            skip("no network namespaces");
            return None;
        }
        let network = Network { server: Namespace::new(), hosts: (0..hosts).map(|_| Namespace::new()).collect() };
        network.server.run("ip link set lo up");
        for (number, host) in network.hosts.iter().enumerate() {
            let (near, far, pid) = (hardware(number, 1), hardware(number, 2), host.holder.id());
            let add = format!("ip link add h{number} address {near} type veth peer name s address {far} netns {pid}");
            network.server.run(&add);
            network.server.run(&format!("ip address add 10.77.{number}.1/24 dev h{number}"));
            network.server.run(&format!("ip link set h{number} up"));
            host.run("ip link set lo up");
            host.run(&format!("ip address add 10.77.{number}.2/24 dev s"));
            host.run("ip link set s up");
            network.set(number, Works::BOTH);
        }
        Some(network)
    }

    /// A command that runs in the namespace of the server.
    pub(crate) fn at_server(&self, program: &str) -> Command {
        self.server.within(program)
    }

    /// A command that runs in the namespace of a host.
    pub(crate) fn at_host(&self, number: usize, program: &str) -> Command {
        self.hosts[number].within(program)
    }

    /// Cuts or restores the directions of a link. Neither end gets an error.
    pub(crate) fn set(&self, number: usize, works: Works) {
        let neighbour = |works: bool, end| if works { hardware(number, end) } else { UNUSED.to_owned() };
        let server = neighbour(works.to_server, 1);
        self.hosts[number].run(&format!("ip neighbour replace 10.77.{number}.1 lladdr {server} nud permanent dev s"));
        let host = neighbour(works.to_host, 2);
        let replace = format!("ip neighbour replace 10.77.{number}.2 lladdr {host} nud permanent dev h{number}");
        self.server.run(&replace);
    }

    /// Limits a link, both ways, to a rate such as `256kbit`.
    pub(crate) fn slow(&self, number: usize, rate: &str) {
        let bucket = format!("root tbf rate {rate} burst 4kb latency 2s");
        self.server.run(&format!("tc qdisc replace dev h{number} {bucket}"));
        self.hosts[number].run(&format!("tc qdisc replace dev s {bucket}"));
    }

    /// Ends [`Network::slow`].
    pub(crate) fn fast(&self, number: usize) {
        self.server.run(&format!("tc qdisc delete dev h{number} root"));
        self.hosts[number].run("tc qdisc delete dev s root");
    }
}

/// The hardware address of an end of a link: 1 is the server's, 2 the host's.
fn hardware(number: usize, end: u8) -> String {
    format!("02:00:00:00:{number:02}:{end:02}")
}
