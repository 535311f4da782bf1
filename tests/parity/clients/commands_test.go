package clients_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

const (
	one  = "-n " + controlPlane + " "
	both = "-n " + controlPlane + "," + worker + " "
	lost = "-n " + controlPlane + "," + nobody + " "
)

var (
	none     = regexp.MustCompile(`^$`)
	services = regexp.MustCompile(` (apid|machined|trustd) `)
)

// spaced makes one space of many: for columns whose widths follow measured values.
func spaced(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(spaces.ReplaceAllString(line, " "), " ")
	}
	return strings.Join(lines, "\n")
}

// numbersAway also names what the original prints for a file that a machine does not have.
func numbersAway(text string) string {
	text = strings.ReplaceAll(text, "%!s(<nil>)", "unset")
	return spaced(number.ReplaceAllString(text, "0"))
}

func TestResources(t *testing.T) {
	kinds := regexp.MustCompile(` (linkstatuses|hostnamestatuses|machineconfigs)\.`)
	compare(t, []comparison{
		{name: "get-rd", line: one + "get rd", keep: kinds},
		{name: "get-rd-both", line: both + "get rd", keep: kinds},
		{name: "get-alias", line: one + "g hostname", digits: true},
		{name: "get-type-any-case", line: one + "get HOSTNAMESTATUSES.net.talos.dev", digits: true},
		{name: "get-links", line: one + "get links", keep: regexp.MustCompile(` eth0 `), digits: true},
		{name: "get-members", changing: true, line: one + "get members", digits: true, keep: none},
		{name: "get-id", line: one + "get links lo", digits: true},
		{name: "get-id-both", line: both + "get hostname hostname", digits: true},
		{name: "get-yaml", line: one + "get hostname -o yaml", digits: true},
		{name: "get-yaml-both", line: both + "get hostname -o yaml", digits: true},
		{name: "get-json", line: one + "get hostname -o json", digits: true},
		{name: "get-json-both", line: both + "get hostname -o json", digits: true},
		{name: "get-jsonpath", line: one + "get hostname -o jsonpath={.spec.hostname}"},
		{name: "get-jsonpath-node", line: both + "get hostname -o jsonpath={.node}"},
		{name: "get-jsonpath-object", line: one + "get hostname -o jsonpath={.spec}"},
		{name: "get-jsonpath-text", line: one + "get hostname -o jsonpath=a-{.spec.hostname}-{.metadata.version}-b", digits: true},
		{name: "get-jsonpath-missing", line: one + "get hostname -o jsonpath={.spec.nosuch}"},
		{name: "get-jsonpath-bad", line: one + "get hostname -o jsonpath={.spec"},
		{name: "get-config", line: one + "get machineconfig", digits: true},
		{name: "get-config-yaml", line: one + "get mc -o yaml", keep: regexp.MustCompile(`yaml-spec|type:`)},
		{name: "get-config-json", line: one + "get mc v1alpha1 -o json", keep: regexp.MustCompile(`yaml-spec|"id"`)},
		{name: "get-namespace", line: one + "get machinetype --namespace config", digits: true},
		{name: "get-namespace-wrong", line: one + "get machinetype --namespace nowhere"},
		{name: "get-unknown", line: one + "get nosuch", looseErrors: true},
		{name: "get-ambiguous-free", line: one + "get services", digits: true, keep: regexp.MustCompile(`apid`)},
		{name: "get-no-id", line: one + "get hostname nosuch"},
		{name: "get-no-id-both", line: both + "get hostname nosuch"},
		{name: "get-bad-format", line: one + "get links -o bad"},
		{name: "get-no-type", line: one + "get"},
		{name: "get-too-many", line: one + "get a b c"},
		{name: "get-lost-node", line: lost + "get hostname", looseErrors: true},
		{name: "get-watch", line: one + "get hostname -w", digits: true, limit: 3 * time.Second},
		{name: "get-watch-yaml", line: one + "get hostname -w -o yaml", digits: true, limit: 3 * time.Second},
		{name: "get-insecure", line: one + "get hostname --insecure", statusOnly: true, looseErrors: true},
		{name: "dependencies", line: one + "inspect dependencies", keep: none},
		{name: "dependencies-both", line: both + "inspect dependencies"},
		{name: "dependencies-resources", line: one + "inspect dependencies --with-resources", normalize: graph, keep: none},
	})
}

// graph names boxes by what is written in them: the original numbers them anew on every run.
func graph(text string) string {
	label := regexp.MustCompile(`(?m)^\s*(n\d+)\[.*label="([^"]*)"`)
	names := map[string]string{}
	for _, match := range label.FindAllStringSubmatch(text, -1) {
		names[match[1]] = match[2]
	}
	text = regexp.MustCompile(`\bn\d+\b`).ReplaceAllStringFunc(text, func(id string) string { return names[id] })
	text = regexp.MustCompile(`cluster_s\d+`).ReplaceAllString(text, "cluster")
	return sorted(text)
}

func TestServicesAndLogs(t *testing.T) {
	compare(t, []comparison{
		{name: "services", line: one + "services", keep: services},
		{name: "services-both", line: both + "services", keep: services, anyOrder: true},
		{name: "service", line: one + "service apid", keep: regexp.MustCompile(`^(NODE|ID|STATE|HEALTH) `)},
		{name: "service-status", line: one + "service trustd status", keep: regexp.MustCompile(`^(NODE|ID|STATE|HEALTH) `)},
		{name: "service-both", line: both + "service machined", digits: true, normalize: spaced, anyOrder: true, keep: none},
		{name: "service-unknown", line: one + "service nosuch"},
		{name: "service-stop", line: one + "service apid stop"},
		{name: "service-start", line: one + "service nosuch start"},
		{name: "service-restart", line: both + "service machined restart"},
		{name: "service-bad-action", line: one + "service apid dance"},
		{name: "service-lost-node", line: lost + "services", looseErrors: true, keep: services},
		{name: "logs", headless: true, line: one + "logs apid --tail 3", keep: none},
		{name: "logs-all", headless: true, line: one + "logs trustd", keep: none},
		{name: "logs-unknown", line: one + "logs nosuch"},
		{name: "logs-kubernetes", changing: true, line: one + "logs -k kube-system/nosuch"},
		{name: "logs-none", line: one + "logs"},
		{name: "logs-follow", headless: true, line: one + "logs trustd -f --tail 1", limit: 2 * time.Second, keep: none},
		{name: "dmesg", headless: true, line: one + "dmesg", keep: none, normalize: firstLines},
		{name: "events", line: one + "events --tail 3", limit: 2 * time.Second, keep: none},
		{name: "events-all", line: one + "events --tail -1", limit: 2 * time.Second, keep: none},
		{name: "events-since", line: one + "events --duration 24h", limit: 2 * time.Second, keep: none},
		{name: "containers", changing: true, line: one + "containers", keep: none},
		{name: "containers-both", changing: true, line: both + "c", keep: none, anyOrder: true},
		{name: "containers-kubernetes", changing: true, line: one + "containers -k", keep: none},
		{name: "stats", changing: true, line: one + "stats", digits: true, keep: none},
		{name: "stats-kubernetes", changing: true, line: one + "stats -k", digits: true, keep: none},
		{name: "restart-unknown", changing: true, line: one + "restart nosuch"},
		{name: "restart-kubernetes", changing: true, line: one + "restart -k nosuch"},
	})
}

// firstLines leaves out what is added while the clients run.
func firstLines(text string) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(len(lines), 20)], "")
}

func TestHost(t *testing.T) {
	compare(t, []comparison{
		{name: "processes", line: one + "processes", digits: true, normalize: processes, keep: regexp.MustCompile(`/sbin/init`)},
		{name: "processes-both", line: both + "ps --sort cpu", digits: true, normalize: processes, keep: none, anyOrder: true},
		{name: "memory", line: one + "memory", digits: true, normalize: numbersAway},
		{name: "memory-both", line: both + "free", digits: true, normalize: numbersAway, anyOrder: true},
		{name: "memory-verbose", line: one + "memory -v", digits: true, normalize: numbersAway},
		{name: "mounts", line: one + "mounts", digits: true, normalize: numbersAway, keep: none},
		{name: "mounts-both", line: both + "mount", digits: true, normalize: numbersAway, anyOrder: true, keep: none},
		{name: "time-check", changing: true, line: one + "time --check 127.0.0.1"},
		{name: "time-check-both", changing: true, line: both + "time --check 127.0.0.1"},
		{name: "version", line: one + "version", normalize: servers, keep: regexp.MustCompile(`Tag|NODE|Enabled|Server`)},
		{name: "version-both", line: both + "version", normalize: servers, anyOrder: true, keep: regexp.MustCompile(`Tag|NODE|Enabled|Server`)},
		{name: "version-short", line: one + "version --short", keep: regexp.MustCompile(`Talos|Tag|NODE|Enabled|Server`), normalize: noCommit},
		{name: "version-client-short", line: "version --client --short"},
		{name: "version-lost", line: lost + "version", normalize: servers, looseErrors: true, keep: regexp.MustCompile(`NODE|Server`)},
		{name: "version-nobody", line: "-n " + nobody + " version", normalize: servers, looseErrors: true},
		{name: "cgroups-cpu", line: one + "cgroups --preset cpu --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-cpuset", line: one + "cgroups --preset cpuset --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-io", line: one + "cgroups --preset io --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-memory", line: one + "cgroups --preset memory --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-process", line: one + "cgroups --preset process --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-psi", line: one + "cgroups --preset psi --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-swap", line: one + "cgroups --preset swap --skip-cri-resolve", digits: true, normalize: numbersAway, keep: none},
		{name: "cgroups-none", line: one + "cgroups"},
		{name: "cgroups-bad", line: one + "cg --preset nosuch"},
		{name: "cgroups-both-flags", line: one + "cg --preset cpu --schema-file x"},
		{name: "cgroups-both", line: both + "cgroups --preset cpu"},
	})
}

// servers leaves out what the client says of itself.
func servers(text string) string {
	_, after, found := strings.Cut(text, "Server:")
	if !found {
		return text
	}
	return "Server:" + noCommit(after)
}

func noCommit(text string) string {
	return regexp.MustCompile(`(?m)^\tSHA: .*\n`).ReplaceAllString(text, "")
}

// processes leaves out states, which change all the time, and orders lines, for values that are nearly equal change
// places.
func processes(text string) string {
	text = regexp.MustCompile(`(?m)^(\S+ +0+ +)[RSDI] `).ReplaceAllString(text, "${1}S ")
	return sorted(numbersAway(text))
}

func TestFiles(t *testing.T) {
	compare(t, []comparison{
		{name: "list", line: one + "ls", keep: regexp.MustCompile(` (etc|proc|sys|system)$`)},
		{name: "list-etc", line: one + "list /etc", keep: regexp.MustCompile(` (hosts|os-release)$`)},
		{name: "list-both", line: both + "ls /etc", anyOrder: true, keep: regexp.MustCompile(` (hosts|os-release)$`)},
		{name: "list-long", digits: true, line: one + "ls -l /etc", keep: regexp.MustCompile(` (os-release)$`)},
		{name: "list-humanize", line: one + "ls -lH /etc", normalize: numbersAway, digits: true, keep: regexp.MustCompile(` (os-release)$`)},
		{name: "list-recurse", line: one + "ls -r /etc/ssl", keep: none},
		{name: "list-depth", line: one + "ls -d 2 /system", keep: none},
		{name: "list-types", line: one + "ls -tf /etc", keep: regexp.MustCompile(` (os-release)$`)},
		{name: "list-types-two", line: one + "ls --type f,l /etc", keep: regexp.MustCompile(` (os-release)$`)},
		{name: "list-bad-type", line: one + "ls -t x /etc"},
		{name: "list-recurse-depth", line: one + "ls -r -d 2 /etc"},
		{name: "list-missing", line: one + "ls /nosuch"},
		{name: "list-missing-both", line: both + "ls /nosuch"},
		{name: "usage", keep: regexp.MustCompile(` (cni|ssl)$`), line: one + "usage /etc", digits: true, normalize: numbersAway},
		{name: "usage-all", digits: true, line: one + "du -a -d 1 /etc", normalize: numbersAway, keep: regexp.MustCompile(`os-release`)},
		{name: "usage-humanize", line: one + "du -H -d 1 /etc", digits: true, normalize: numbersAway, keep: none},
		{name: "usage-threshold", line: one + "du -a -t 100 -d 1 /etc", digits: true, normalize: numbersAway, keep: none},
		{name: "usage-both", keep: regexp.MustCompile(` (cni|ssl)$`), line: both + "du /etc", digits: true, normalize: numbersAway, anyOrder: true},
		{name: "usage-missing", line: one + "du /nosuch", looseErrors: true},
		{name: "read", line: one + "read /etc/os-release", keep: regexp.MustCompile(`^ID=`)},
		{name: "read-missing", line: one + "cat /nosuch"},
		{name: "read-directory", line: one + "cat /etc"},
		{name: "read-both", line: both + "cat /etc/os-release"},
		{name: "copy-missing", line: one + "cp /nosuch -", looseErrors: true, statusOnly: true},
		{name: "copy-both", line: both + "cp /etc -"},
		{name: "copy-relative", line: one + "cp etc -", looseErrors: true, statusOnly: true},
	})
}
