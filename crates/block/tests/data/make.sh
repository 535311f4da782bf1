#!/usr/bin/env bash
# Makes the images that signatures are judged by, with the tools that make real ones. Needs root (a loop device for LVM) and
# xfsprogs, e2fsprogs, dosfstools, util-linux, cryptsetup-bin, squashfs-tools, genisoimage, gdisk, lvm2, zstd.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$(mktemp -d)"
key() { printf %s secret; }

truncate -s 32M xfs; mkfs.xfs -q -n ftype=1 --unsupported -L STATE -m uuid=11111111-2222-3333-4444-555555555555 xfs
truncate -s 8M ext4; mkfs.ext4 -q -L DATA -U 21111111-2222-3333-4444-555555555555 ext4
truncate -s 2M ext2; mkfs.ext2 -q -U 22111111-2222-3333-4444-555555555555 ext2
truncate -s 34M fat32; mkfs.vfat -F 32 -n EFI -i 1234ABCD --invariant fat32 >/dev/null
truncate -s 16M fat16; mkfs.vfat -F 16 -i 00C0FFEE fat16 >/dev/null
truncate -s 1M swap; chmod 600 swap; mkswap -q -L SWAP -U 31111111-2222-3333-4444-555555555555 swap
truncate -s 20M luks2
key | cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --label LOCKED --uuid 41111111-2222-3333-4444-555555555555 luks2 -
truncate -s 4M luks1
key | cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --uuid 42111111-2222-3333-4444-555555555555 luks1 -
# Behind the headers there are only random keys.
for image in luks1:4M luks2:20M; do truncate -s 32K "${image%:*}"; truncate -s "${image#*:}" "${image%:*}"; done
mkdir files; echo hi >files/a
mksquashfs files squashfs -quiet -no-progress -comp gzip -all-time 0 >/dev/null
genisoimage -quiet -J -V TALOS_V1_12_1 -o iso9660 files 2>/dev/null
rm -r files
truncate -s 8M gpt
sgdisk -a 2048 -o -U 51111111-2222-3333-4444-555555555555 \
  -n 1:0:+1M -t 1:EF00 -c 1:EFI -u 1:61111111-2222-3333-4444-555555555555 \
  -n 2:0:+1M -t 2:8300 -c 2:META -u 2:62111111-2222-3333-4444-555555555555 gpt >/dev/null
truncate -s 8M lvm2-pv
device=$(losetup -f --show lvm2-pv)
pvcreate -qq -y --norestorefile -u abcdef-GHIJ-klmn-OPQR-stuv-WXYZ-012345 "$device"
sync; losetup -d "$device"

zstd -q -f -19 --rm --output-dir-flat "$here" -- *
