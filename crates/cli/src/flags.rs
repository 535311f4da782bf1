//! Turns the flags of a command into a struct, once.

/// Declares a struct with the resolved flags and arguments of a command, and `of(&Call)`, which reads them. The logic of a
/// command works with the struct; no name of a flag is looked up behind it.
///
/// ```ignore
/// flags! {
///     /// The command line of `logs`.
///     LogsFlags { connection: connection(), service: arg(0), follow: on("follow"), tail: int("tail") }
/// }
/// ```
macro_rules! flags {
    ($(#[$meta:meta])* $vis:vis $name:ident {
        $($field:ident: $how:ident($($of:literal)?)),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($vis $field: $crate::flags::flags!(@type $how)),+
        }

        impl $name {
            $vis fn of(call: &$crate::parse::Call) -> Self {
                $($(debug_assert!(call.knows(stringify!($of)), "{} has no flag {}", call.path_text(), $of);)?)+
                Self { $($field: $crate::flags::flags!(@read call $how $($of)?)),+ }
            }
        }
    };
    (@type connection) => { $crate::connection::Connection };
    (@type args) => { Vec<String> };
    (@type arg) => { String };
    (@type some_arg) => { Option<String> };
    (@type on) => { bool };
    (@type text) => { String };
    (@type some) => { Option<String> };
    (@type int) => { i64 };
    (@type list) => { Vec<String> };
    (@type duration) => { std::time::Duration };
    (@read $call:ident connection) => { $call.connection() };
    (@read $call:ident args) => { $call.args.clone() };
    (@read $call:ident arg $at:literal) => { $call.arg($at).to_owned() };
    (@read $call:ident some_arg $at:literal) => { $call.args.get($at).cloned() };
    (@read $call:ident on $flag:literal) => { $call.on($flag) };
    (@read $call:ident text $flag:literal) => { $call.text($flag).to_owned() };
    (@read $call:ident some $flag:literal) => { $call.some_text($flag).map(str::to_owned) };
    (@read $call:ident int $flag:literal) => { $call.int($flag) };
    (@read $call:ident list $flag:literal) => { $call.list($flag) };
    (@read $call:ident duration $flag:literal) => { $call.duration($flag) };
}

pub(crate) use flags;
