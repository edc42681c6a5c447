#!/bin/busybox sh
# First process of a guest: shows the host's file system under a throw-away overlay, sets up
# cgroups as asked, runs one command and powers off. Settings come as environment variables,
# which the kernel makes of the words NAME=value on its command line.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done

share() { # TAG DIRECTORY OPTIONS
    mkdir -p "$2" && mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"
}
share host /host ro,cache=loose
share control /control cache=none

# A name for the virtual serial port that carries the command's output to the host.
for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = output ] && output=/dev/${port##*/}
done

mount -t tmpfs -o size=90% tmpfs /writable
mkdir /writable/upper /writable/work
mount -t overlay -o lowerdir=/host,upperdir=/writable/upper,workdir=/writable/work overlay /root
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t devpts devpts /root/dev/pts
ln -sf /proc/self/fd /root/dev/fd
ln -sf fd/0 /root/dev/stdin
ln -sf fd/1 /root/dev/stdout
ln -sf fd/2 /root/dev/stderr
mount -t tmpfs run /root/run
[ -z "$RIG_SHARED" ] || share shared "/root$RIG_SHARED" cache=none

cgroups=/root/sys/fs/cgroup
mount_v1() {
    mount -t tmpfs cgroup "$cgroups"
    awk '!/^#/ && $4 == 1 {print $1}' /proc/cgroups | while read -r controller; do
        mkdir "$cgroups/$controller"
        mount -t cgroup -o "$controller" cgroup "$cgroups/$controller" || rmdir "$cgroups/$controller"
    done
}
case $RIG_CGROUP in
    v1) mount_v1 ;;
    hybrid)
        mount_v1
        mkdir "$cgroups/unified"
        mount -t cgroup2 cgroup2 "$cgroups/unified"
        ;;
    v2)
        mount -t cgroup2 -o nsdelegate cgroup2 "$cgroups"
        for controller in $(cat "$cgroups/cgroup.controllers"); do
            echo "+$controller" >"$cgroups/cgroup.subtree_control"
        done
        ;;
esac

if [ -n "$RIG_SWAP_MIB" ]; then
    echo "${RIG_SWAP_MIB}M" >/sys/block/zram0/disksize
    mkswap /dev/zram0 >/dev/null && swapon /dev/zram0
fi
ifconfig lo 127.0.0.1 up
hostname guest

# A copy: the control folder itself is not visible below the new root.
cp /control/command /root/run/command
chroot /root /bin/sh /run/command </dev/null >"$output" 2>&1
code=$?
dmesg >/control/kernel_log
# Last, so that its presence says that all the rest is complete.
echo "$code" >/control/exit_code
sync
reboot -f
