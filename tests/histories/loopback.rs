//! TCP of this program: unix sockets with the port in their name.
//!
//! The kernel delivers what is sent over the loopback device by a softirq, at once or when it has time. What is sent over a
//! unix socket is there when the call returns. So the C library's calls are replaced: what connects to a port, or listens
//! on one, does so at a file in the own `/tmp`.
//!
//! # Safety
//! Each function has the contract of the one that it replaces: pointers are valid for what their lengths say.

use std::io::Write as _;
use std::mem::size_of;
use std::sync::atomic::{AtomicU16, Ordering};

use libc::{c_int, c_long, c_void, sockaddr, sockaddr_in, sockaddr_un, socklen_t};

/// What the name of a port's socket begins with.
const PREFIX: &[u8] = b"/tmp/port-";

/// Of the next listener that leaves the choice to the kernel.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

fn is_ip(family: c_int) -> bool {
    family == libc::AF_INET || family == libc::AF_INET6
}

/// # Safety
/// That of the module.
unsafe fn call(number: c_long, fd: c_int, address: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(number, fd, address, length) as c_int }
}

/// The unix address of an IP address's port, if it is an IP address.
///
/// # Safety
/// That of the module.
unsafe fn port_of(address: *const sockaddr) -> Option<u16> {
    // SAFETY: the caller's promise; the port is at the same place for both families.
    unsafe {
        let ip = is_ip(c_int::from((*address).sa_family));
        ip.then(|| u16::from_be((*address.cast::<sockaddr_in>()).sin_port))
    }
}

fn unix_address(port: u16) -> sockaddr_un {
    let mut bytes = [0; 108];
    let _ = write!(&mut bytes[..], "{}{port}", String::from_utf8_lossy(PREFIX));
    let mut address =
        sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    for (into, byte) in address.sun_path.iter_mut().zip(bytes) {
        *into = byte as libc::c_char;
    }
    address
}

/// The port in the name that `number` (getsockname or getpeername) gives of a socket.
fn named_port(number: c_long, fd: c_int) -> Option<u16> {
    let mut address = sockaddr_un { sun_family: 0, sun_path: [0; 108] };
    let mut length = size_of::<sockaddr_un>() as socklen_t;
    // SAFETY: the address has that length.
    let failed = unsafe { libc::syscall(number, fd, &raw mut address, &raw mut length) };
    let path = address.sun_path.map(|byte| byte as u8);
    let port = path.strip_prefix(PREFIX).filter(|_| failed == 0)?;
    let digits = port.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Fills in 127.0.0.1 and a port.
///
/// # Safety
/// That of the module.
unsafe fn answer(into: *mut sockaddr, length: *mut socklen_t, port: u16) {
    if into.is_null() || length.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        *length = size_of::<sockaddr_in>() as socklen_t;
        into.cast::<sockaddr_in>().write(sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: 0x7f00_0001_u32.to_be() },
            sin_zero: [0; 8],
        });
    }
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_stream = kind & 0xf == libc::SOCK_STREAM;
    let (domain, protocol) =
        if is_stream && is_ip(domain) { (libc::AF_UNIX, 0) } else { (domain, protocol) };
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match port_of(address).filter(|_| is_unix(fd)) {
            Some(port) => {
                let to = unix_address(port);
                let done = call(libc::SYS_connect, fd, (&raw const to).cast(), size_of_val(&to));
                if done != 0 && *libc::__errno_location() == libc::ENOENT {
                    *libc::__errno_location() = libc::ECONNREFUSED;
                }
                done
            }
            None => call(libc::SYS_connect, fd, address.cast(), length as usize),
        }
    }
}

fn is_unix(fd: c_int) -> bool {
    let mut domain: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
    // SAFETY: the value has that length.
    unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, level, name, &raw mut domain, &raw mut length)
    };
    domain == libc::AF_UNIX
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(port) = port_of(address).filter(|_| is_unix(fd)) else {
            return call(libc::SYS_bind, fd, address.cast(), length as usize);
        };
        let port = if port == 0 { NEXT_PORT.fetch_add(1, Ordering::Relaxed) } else { port };
        let at = unix_address(port);
        // A kubelet that was killed has left it.
        libc::unlink(at.sun_path.as_ptr());
        call(libc::SYS_bind, fd, (&raw const at).cast(), size_of_val(&at))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if named_port(libc::SYS_getsockname, fd).is_none() {
            return libc::syscall(libc::SYS_accept4, fd, address, length, flags) as c_int;
        }
        let none = std::ptr::null_mut::<c_void>();
        let accepted = libc::syscall(libc::SYS_accept4, fd, none, none, flags) as c_int;
        answer(address, length, 1);
        accepted
    }
}

/// # Safety
/// That of the module.
unsafe fn name(
    number: c_long,
    other: c_long,
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(port) = named_port(number, fd) {
            answer(address, length, port);
            return 0;
        }
        if named_port(other, fd).is_some() {
            answer(address, length, 1);
            return 0;
        }
        libc::syscall(number, fd, address, length) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { name(libc::SYS_getsockname, libc::SYS_getpeername, fd, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { name(libc::SYS_getpeername, libc::SYS_getsockname, fd, address, length) }
}

/// Options of TCP have no effect here.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, value, length) };
    if level == libc::SOL_SOCKET { done as c_int } else { 0 }
}
