package clients_test

import (
	"regexp"
	"testing"
	"time"
)

func TestNetwork(t *testing.T) {
	compare(t, []comparison{
		{name: "netstat", line: one + "netstat", digits: true, normalize: sockets, keep: none},
		{name: "netstat-listening", line: one + "netstat -l", normalize: sockets, keep: none},
		{name: "netstat-all", line: one + "netstat -a -v", digits: true, normalize: sockets, keep: none},
		{name: "netstat-columns", line: one + "ss -l -x -p -o", digits: true, normalize: sockets, keep: none},
		{name: "netstat-both", line: both + "netstat -l -t", normalize: sockets, anyOrder: true, keep: none},
		{name: "netstat-ipv4", line: one + "netstat -l -t -4", normalize: sockets, keep: none},
		{name: "netstat-ipv6", line: one + "netstat -l -t -6", normalize: sockets, keep: none},
		{name: "netstat-raw", line: one + "netstat -a -w", normalize: sockets, keep: none},
		{name: "netstat-pods-and-pod", line: one + "netstat -k a/b"},
		{name: "netstat-pod-unknown", changing: true, line: one + "netstat a/b", looseErrors: true},
		{name: "pcap-unknown-link", line: one + "pcap -i nosuch0"},
		{name: "pcap-bad-filter", line: one + "pcap -i eth0 --bpf-filter nonsense"},
		{name: "pcap-both", line: both + "pcap -i eth0"},
		{name: "pcap-duration", line: one + "pcap -i lo --duration 1s -o /dev/null"},
	})
}

// sockets leaves out connections: every call makes one.
func sockets(text string) string {
	text = regexp.MustCompile(`(?m)^.* (ESTABLISHED|TIME_WAIT|CLOSEWAIT|LASTACK|FIN_WAIT\d|SYN_\w+).*\n`).ReplaceAllString(text, "")
	return sorted(numbersAway(text))
}

func TestActions(t *testing.T) {
	compare(t, []comparison{
		{name: "reboot-bad-mode", line: one + "reboot --mode x"},
		{name: "reset-insecure-wait", line: one + "reset --insecure"},
		{name: "reset-bad-mode", line: one + "reset --wipe-mode x"},
		{name: "upgrade-insecure-wait", line: one + "upgrade --insecure"},
		{name: "upgrade-bad-mode", line: one + "upgrade -m x"},
		{name: "upgrade-start", changing: true, line: one + "upgrade --wait=false"},
		{name: "rollback", changing: true, line: one + "rollback"},
		{name: "meta-bad-key", line: one + "meta write 256 x"},
		{name: "meta-words", line: one + "meta write 12"},
		{name: "meta-write", line: one + "meta write 0x0c value"},
		{name: "meta-delete", line: one + "meta delete 12"},
		{name: "meta-delete-again", line: one + "meta delete 12"},
		{name: "wipe-unknown", line: one + "wipe disk nosuch"},
		{name: "wipe-bad-method", line: one + "wipe disk --method x sda"},
		{name: "wipe-none", line: one + "wipe disk"},
		{name: "bootstrap-both", line: both + "bootstrap"},
		{name: "patch-dry-run", line: one + "patch mc --dry-run -p '{\"machine\":{\"sysctls\":{\"net.core.somaxconn\":\"999\"}}}'", looseErrors: true, statusOnly: true},
		{name: "patch-none", line: one + "patch mc"},
		{name: "apply-no-file", line: one + "apply-config"},
		{name: "apply-missing-file", line: one + "apply-config -f /nosuch"},
		{name: "apply-bad-mode", line: one + "apply-config -f /nosuch --mode x"},
	})
}

func TestImages(t *testing.T) {
	compare(t, []comparison{
		{name: "image-list", changing: true, line: one + "image list", keep: none},
		{name: "image-list-system", changing: true, line: one + "images ls --namespace system", keep: none},
		{name: "image-bad-namespace", line: one + "image list --namespace x"},
		{name: "image-pull-none", line: one + "image pull"},
		{name: "image-k8s-bundle", line: "image k8s-bundle"},
		{name: "image-default", line: "image default --provisioner docker"},
		{name: "image-k8s-bundle-bad", line: "image k8s-bundle --provisioner x"},
		{name: "image-talos-bundle-bad", line: "image talos-bundle 1.12.1"},
		{name: "image-talos-bundle-old", line: "image talos-bundle v1.10.0"},
		{name: "image-cache-create-none", line: "image cache-create"},
	})
}

func TestEtcdAndKubernetes(t *testing.T) {
	compare(t, []comparison{
		{name: "etcd-members", changing: true, line: one + "etcd members"},
		{name: "etcd-status", changing: true, line: one + "etcd status"},
		{name: "etcd-alarm-list", changing: true, line: one + "etcd alarm list"},
		{name: "etcd-alarm-disarm", changing: true, line: one + "etcd alarm disarm"},
		{name: "etcd-defrag", changing: true, line: one + "etcd defrag"},
		{name: "etcd-defrag-both", line: both + "etcd defrag"},
		{name: "etcd-leave-both", line: both + "etcd leave"},
		{name: "etcd-remove-bad", line: one + "etcd remove-member x"},
		{name: "etcd-remove", changing: true, line: one + "etcd remove-member 1"},
		{name: "etcd-forfeit", changing: true, line: one + "etcd forfeit-leadership"},
		{name: "etcd-snapshot", changing: true, line: one + "etcd snapshot db", looseErrors: true},
		{name: "etcd-downgrade", changing: true, line: one + "etcd downgrade validate 3.5"},
		{name: "etcd-downgrade-none", line: one + "etcd downgrade enable"},
		{name: "kubeconfig", changing: true, line: one + "kubeconfig --merge=false -", normalize: keysAway},
		{name: "containers-k", changing: true, line: one + "containers -k", digits: true, anyOrder: true},
		{name: "upgrade-k8s", changing: true, line: one + "upgrade-k8s --dry-run --endpoint https://127.78.0.2:6443",
			anyOrder: true, looseErrors: true, limit: 2 * time.Minute},
		{name: "kubeconfig-both", line: both + "kubeconfig --merge=false -"},
		{name: "health-both", line: both + "health"},
		{name: "health", changing: true, line: one + "health --wait-timeout 1s", looseErrors: true},
		{name: "conformance-bad", line: one + "conformance kubernetes --mode x"},
	})
}

func TestCalls(t *testing.T) {
	compare(t, []comparison{
		{name: "no-command", line: "nosuch"},
		{name: "no-flag", line: "services --nosuch"},
		{name: "no-letter", line: "services -Z"},
		{name: "flag-without-value", line: "services -n"},
		{name: "bad-number", line: one + "logs apid --tail x"},
		{name: "bad-duration", line: one + "events --duration x"},
		{name: "context-unknown", line: one + "--context nosuch version", normalize: servers},
		{name: "context-nodes", line: "services", keep: services},
		{name: "endpoint-refused", line: "-e 127.0.0.1:1 " + one + "services", looseErrors: true},
		{name: "flags-first", line: "--nodes " + controlPlane + " --endpoints 127.78.0.2 services", keep: services},
		{name: "flags-last", line: "services --nodes=" + controlPlane + " -e 127.78.0.2", keep: services},
		{name: "flags-joined", line: "ls -lHn " + controlPlane + " /etc", normalize: numbersAway, digits: true, keep: none},
		{name: "nodes-repeated", line: "-n " + controlPlane + " -n " + worker + " services", anyOrder: true, keep: services},
		{name: "worker-as-endpoint", line: "-e 127.78.0.3 " + one + "services"},
		{name: "worker-itself", line: "-e 127.78.0.3 -n " + worker + " services", keep: services},
		{name: "no-talosconfig", line: "--talosconfig nosuch " + one + "version", normalize: servers},
		{name: "config-contexts", line: "config contexts"},
		{name: "config-context-unknown", line: "config context nosuch"},
		{name: "crashdump", line: one + "crashdump"},
		{name: "disks", line: one + "disks"},
		{name: "interfaces", line: one + "interfaces"},
		{name: "routes", line: one + "routes"},
		{name: "support-no-nodes", line: "support"},
		{name: "completion-bad", line: "completion tcsh"},
	})
}

// keysAway takes out certificates and keys, which are made anew for every answer.
func keysAway(text string) string { return keyLines.ReplaceAllString(text, "-data: KEY") }

var keyLines = regexp.MustCompile(`-data: \S+`)
