//! Configurations of both systems, and what is refused.

use expect_test::expect;

use super::*;

/// As os.md draws what the original writes.
const ORIGINAL: &str = r#"set default="A - Talos v1.12.1"
set fallback="B - Talos v1.12.0"

set timeout=3

insmod all_video

terminal_input console
terminal_output console

menuentry "B - Talos v1.12.0" {
  set gfxmode=auto
  set gfxpayload=text
  linux /B/vmlinuz talos.platform=metal console=tty0 slab_nomerge pti=on
  initrd /B/initramfs.xz
}
menuentry "A - Talos v1.12.1" {
  set gfxmode=auto
  set gfxpayload=text
  linux /A/vmlinuz talos.platform=metal console=tty0 talos.config=https://10.0.0.1/c?uuid=\$\{uuid\}\&a=\;b
  initrd /A/initramfs.xz
}
menuentry "Reset Talos installation and return to maintenance mode" {
  set gfxmode=auto
  set gfxpayload=text
  linux /A/vmlinuz talos.platform=metal console=tty0 talos.experimental.wipe=system:EPHEMERAL,STATE
  initrd /A/initramfs.xz
}
"#;

fn config() -> GrubConfig {
    let entry = |slot: Slot, tag: &str, cmdline: &str| Entry {
        title: title(slot, "Talos", tag),
        kernel: format!("/{slot}/vmlinuz"),
        initrd: format!("/{slot}/initramfs.xz"),
        cmdline: cmdline.to_owned(),
    };
    GrubConfig {
        default: Slot::A,
        fallback: None,
        entries: [
            Some(entry(Slot::A, "v1.12.1", "talos.platform=metal a=${b}")),
            Some(entry(Slot::B, "v1.13.0", "talos.platform=metal")),
        ],
        reset: true,
        one_shot: true,
    }
}

#[test]
fn a_configuration_of_the_original_is_understood() {
    let config = GrubConfig::parse(ORIGINAL).unwrap();
    assert_eq!((config.default, config.fallback), (Slot::A, Some(Slot::B)));
    assert!(config.reset && !config.one_shot);
    let entry = config.entry(Slot::A).unwrap();
    assert_eq!(
        entry.cmdline,
        "talos.platform=metal console=tty0 talos.config=https://10.0.0.1/c?uuid=${uuid}&a=;b"
    );
    assert_eq!((entry.kernel.as_str(), entry.initrd.as_str()), ("/A/vmlinuz", "/A/initramfs.xz"));
    assert_eq!(config.entry(Slot::B).unwrap().title, "B - Talos v1.12.0");
}

#[test]
fn what_is_rendered_has_the_shape_of_the_original() {
    let mut config = GrubConfig::parse(ORIGINAL).unwrap();
    let rendered = config.render().unwrap();
    // The order of entries is not specified; nothing else differs.
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let original = ORIGINAL.replace(
        "console=tty0 talos.experimental",
        "console=tty0 talos.config=https://10.0.0.1/c?uuid=\\$\\{uuid\\}\\&a=\\;b talos.experimental",
    );
    assert_eq!(sorted(&rendered), sorted(&original));
    assert_eq!(GrubConfig::parse(&rendered), Ok(config.clone()));
    config.one_shot = true;
    assert_eq!(GrubConfig::parse(&config.render().unwrap()), Ok(config));
}

#[test]
fn a_trial_is_started_only_if_it_was_taken_out_of_the_environment() {
    expect![[r#"
        set default="A - Talos v1.12.1"

        set timeout=3

        insmod all_video

        terminal_input console
        terminal_output console

        if [ -s "$prefix/grubenv" ]; then
          load_env next_entry
        fi
        if [ -n "$next_entry" ]; then
          set "trial_entry=$next_entry"
          set next_entry=
          if save_env next_entry; then
            set "fallback=$default"
            set "default=$trial_entry"
          fi
        fi

        menuentry "A - Talos v1.12.1" {
          set gfxmode=auto
          set gfxpayload=text
          linux /A/vmlinuz talos.platform=metal a=\$\{b\}
          initrd /A/initramfs.xz
        }
        menuentry "B - Talos v1.13.0" {
          set gfxmode=auto
          set gfxpayload=text
          linux /B/vmlinuz talos.platform=metal
          initrd /B/initramfs.xz
        }
        menuentry "Reset Talos installation and return to maintenance mode" {
          set gfxmode=auto
          set gfxpayload=text
          linux /A/vmlinuz talos.platform=metal a=\$\{b\} talos.experimental.wipe=system:EPHEMERAL,STATE
          initrd /A/initramfs.xz
        }
    "#]]
    .assert_eq(&config().render().unwrap());
}

#[test]
fn the_running_entry_is_found_by_its_kernel() {
    let config = config();
    assert_eq!(config.title_of_kernel("/B/vmlinuz"), Some("B - Talos v1.13.0"));
    assert_eq!(config.title_of_kernel("(hd0,gpt3)/A/vmlinuz"), Some("A - Talos v1.12.1"));
    assert_eq!(config.title_of_kernel("/boot/vmlinuz"), None);
}

#[test]
fn what_is_no_configuration_is_refused_by_name() {
    let errors = [
        ("", "grub.cfg: 0 lines with `set default=\"…\"`, expected one"),
        (
            "set default=\"A\"\nset default=\"B\"\n",
            "grub.cfg: 2 lines with `set default=\"…\"`, expected one",
        ),
        ("set default=\"C - x\"\n", "grub.cfg: \"C - x\" begins with neither A, B nor Reset"),
        ("set default=\"A - x\"\n", "grub.cfg: slot A has no menu entry"),
        (
            "set default=\"A - x\"\nmenuentry \"A - x\" {\n linux /a b\\}\n",
            "grub.cfg: menu entry \"A - x\" has no closing brace",
        ),
        (
            "set default=\"A - x\"\nmenuentry \"A - x\" {\n linux /a b\n}\n",
            "grub.cfg: menu entry \"A - x\" has 0 `initrd` lines, expected one",
        ),
    ];
    for (text, words) in errors {
        assert_eq!(GrubConfig::parse(text).unwrap_err().to_string(), words);
    }
}

#[test]
fn what_grub_would_misread_is_not_written() {
    for (cmdline, character) in [("a=b'c", '\''), ("a #b", '#'), ("a\nb", '\n')] {
        let mut config = config();
        config.entries[1].as_mut().unwrap().cmdline = cmdline.to_owned();
        assert!(
            matches!(config.render(), Err(GrubError::Character { character: found, .. }) if found == character)
        );
    }
    let mut config = config();
    config.entries[0].as_mut().unwrap().title = "A - Talos > v1".to_owned();
    assert!(config.render().is_err());
}
