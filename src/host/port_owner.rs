//! The process that listens on a port.

use std::fs;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// ID and name of a process that listens on a TCP port in this network namespace; `None` if there is none, or if this
/// process may not see it. Blocking.
pub fn listener_of(port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<_> = tables
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .collect();
    let sockets: Vec<_> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let descriptors = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let mut links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        let has_it =
            links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()));
        has_it.then_some(process)
    });
    let process = processes.next()?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some((process, name.trim_end().to_owned()))
}

/// The inodes of the sockets that listen on a port.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let suffix = format!(":{port:04X}");
    let sockets = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let listens = *state == LISTEN && local.ends_with(&suffix);
        if listens { inode.parse().ok() } else { None }
    });
    sockets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_listener_is_this_process_and_a_client_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (process, name) = listener_of(address.port()).unwrap();
        assert_eq!(process, std::process::id());
        assert!(!name.is_empty());
        drop(listener);
        assert_eq!(listener_of(client.local_addr().unwrap().port()), None);
    }

    #[test]
    fn other_states_ports_and_cut_lines_do_not_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41 1\n\
            1: 0100007F:1F90 0100007F:0001 01 00000000:00000000 00:00000000 00000000     0        0 42 1\n\
            2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 43 1\n\
            3: 0100007F:1F90 0000\n";
        assert_eq!(listening_inodes(table, 8080), [41]);
    }
}
