package clients_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// command is what help tells about a command, without the words that describe it.
type command struct {
	Usage   string            `json:"usage"`
	Aliases string            `json:"aliases,omitempty"`
	Flags   map[string]string `json:"flags,omitempty"`
}

var (
	flagLine    = regexp.MustCompile(`^\s+(?:-(\S), )?--([a-z0-9_-]+)(?: ((?:[^\s,]+, )*[^\s]+(?: \| [^\s]+)*))?(?:\s{2,}|\s*$)(.*)`)
	defaultText = regexp.MustCompile(`\(default ("[^"]*"|\[[^\]]*\]|-?[0-9][^) ]*|true)\)`)
)

// tree asks a client for the help of every command of some groups.
func tree(who client) map[string]command {
	found := map[string]command{}
	var walk func(path []string)
	walk = func(path []string) {
		help := who.run(time.Minute, append(slices.Clone(path), "--help")...).stdout
		this, below := read(help, len(path) == 0)
		if len(path) > 0 {
			found[strings.Join(path, " ")] = this
		}
		for _, name := range below {
			if name == "help" || name == "cluster" {
				continue
			}
			walk(append(slices.Clone(path), name))
		}
	}
	walk(nil)
	return found
}

func read(help string, root bool) (command, []string) {
	this := command{Flags: map[string]string{}}
	var below []string
	section := ""
	for line := range strings.SplitSeq(help, "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			section = line
			continue
		}
		text := strings.TrimSpace(line)
		switch {
		case text == "":
		case section == "Usage:" && this.Usage == "":
			_, this.Usage, _ = strings.Cut(text, " ")
		case section == "Aliases:":
			this.Aliases = text
		case section == "Available Commands:", root && strings.HasSuffix(section, ":") && !strings.Contains(section, "lags"):
			if section != "Usage:" {
				below = append(below, strings.Fields(text)[0])
			}
		case strings.HasSuffix(section, "lags:"):
			if match := flagLine.FindStringSubmatch(line); match != nil {
				value := match[1] + " " + match[3]
				if fallback := defaultText.FindStringSubmatch(match[4]); fallback != nil {
					value += " " + fallback[1]
				}
				this.Flags[match[2]] = strings.TrimSpace(value)
			}
		}
	}
	return this, below
}

// ourOwn commands and flags are not in the original.
var ourOwn = regexp.MustCompile(`^(audit|image build|why|config (diff|explain|renew|schema)|etcd (backup|fetch|recover))( |$)|^bootstrap --(age|s3)-|^conformance kubernetes --(focus|image|k8s-endpoint|parallel|results|verbose)$|^validate --output$|^dashboard --insecure$|^config \S+ --(auto|renew)`)

// placeholders: the original names the values of some flags otherwise; what they take is the same.
var placeholders = regexp.MustCompile(`^(\S )?(strings|stringArray|ipSlice|system|talosconfig|string|\S+, .*)\b( \[\]$)?`)

// notCompared are commands of other groups that have their own tests; their flags and letters must be there.
var notCompared = regexp.MustCompile(`^(gen|inject|machineconfig|validate|completion|dashboard|apply-config|edit|patch|config)( |$)`)

// TestCommandsAndFlags holds names, aliases, usage, flags, their letters and defaults against the original's.
func TestCommandsAndFlags(t *testing.T) {
	const file = "flags.json"
	ours := tree(ours())
	want := map[string]command{}
	if fleet.original != "" {
		want = tree(theirs())
		if *update {
			text, err := json.MarshalIndent(want, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join("testdata", file), append(text, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) < 60 {
		t.Fatalf("only %d commands known", len(want))
	}
	for name, theirs := range want {
		mine, there := ours[name]
		if !there {
			t.Errorf("%s: missing", name)
			continue
		}
		if theirs.Aliases != mine.Aliases {
			t.Errorf("%s: aliases %q and %q", name, theirs.Aliases, mine.Aliases)
		}
		if !notCompared.MatchString(name) && theirs.Usage != mine.Usage {
			t.Errorf("%s: usage %q and %q", name, theirs.Usage, mine.Usage)
		}
		for flag, shape := range theirs.Flags {
			mineShape, there := mine.Flags[flag]
			if !there {
				t.Errorf("%s: flag --%s is missing", name, flag)
			} else if strings.Contains(shape, ", ") || notCompared.MatchString(name) {
				// The original lists choices in place of a type and a default.
				if letter(shape) != letter(mineShape) {
					t.Errorf("%s: flag --%s is %q and %q", name, flag, shape, mineShape)
				}
			} else if plain(shape) != plain(mineShape) {
				t.Errorf("%s: flag --%s is %q and %q", name, flag, shape, mineShape)
			}
		}
		for flag := range mine.Flags {
			if _, there := theirs.Flags[flag]; !there && !ourOwn.MatchString(name+" --"+flag) {
				t.Errorf("%s: flag --%s is not in the original", name, flag)
			}
		}
	}
	for name := range ours {
		if _, there := want[name]; !there && !ourOwn.MatchString(name+" ") {
			t.Errorf("%s: not in the original", name)
		}
	}
}

func letter(shape string) string {
	if first, _, _ := strings.Cut(shape, " "); len(first) == 1 {
		return first
	}
	return ""
}

func plain(shape string) string {
	shape = placeholders.ReplaceAllString(shape, "${1}")
	return strings.Join(strings.Fields(shape), " ")
}
