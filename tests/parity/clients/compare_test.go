package clients_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// attempts bounds how often a comparison of measured values is tried: a number may grow a digit between two runs.
// Machines come to rest between them.
const attempts = 6

// pause is the rest before an attempt.
func pause(attempt int) { time.Sleep(time.Duration(attempt) * 500 * time.Millisecond) }

// comparison is one command and what to hold against each other.
type comparison struct {
	// name of the test and of its expectations.
	name string
	// line is the command line without the program.
	line string
	// digits are all measured.
	digits bool
	// anyOrder: lines below the first may come in any order.
	anyOrder bool
	// keep names the lines whose expectations are stored; all without it. The first line always is.
	keep *regexp.Regexp
	// headless: the first line is one like the others.
	headless bool
	// normalize rewrites the output before it is compared.
	normalize func(string) string
	// limit ends commands that follow something; their exit status does not count.
	limit time.Duration
	// looseErrors: the clients talk to the machine in other steps, so only exit status and output count.
	looseErrors bool
	// changing: what machines answer depends on what they run by now, so nothing is stored.
	changing bool
	// statusOnly: the output is the client's own, such as its version.
	statusOnly bool
}

// run gives followers more time with every attempt: a busy machine needs it to start them.
func (c comparison) run(who client, attempt int) outcome {
	limit := 2 * time.Minute
	if c.limit > 0 {
		limit = c.limit * time.Duration(1+attempt)
	}
	out := who.run(limit, words(c.line)...)
	if c.limit > 0 {
		out.status, out.stderr = 0, ""
	}
	if c.statusOnly {
		out.stdout = ""
	}
	return out
}

func (c comparison) live(out outcome) string {
	text := masked(out.stdout, c.digits)
	if c.normalize != nil {
		text = c.normalize(text)
	}
	if c.anyOrder {
		text = sorted(text)
	}
	return text
}

func compare(t *testing.T, cases []comparison) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if fleet.original != "" {
				c.againstOriginal(t)
				return
			}
			c.againstStored(t)
		})
	}
}

func (c comparison) againstOriginal(t *testing.T) {
	t.Helper()
	var problem string
	for attempt := range attempts {
		pause(attempt)
		left, right := c.run(theirs(), attempt), c.run(ours(), attempt)
		if problem = c.differs(left, right); problem == "" {
			if c.changing {
				return
			}
			if *update {
				c.write(t, stored(c, left))
			}
			if left, right := stored(c, left), stored(c, right); left != right {
				t.Errorf("%s: stored forms differ%s", c.line, firstDifference(left, right))
			}
			return
		}
	}
	t.Errorf("%s: %s", c.line, problem)
}

func (c comparison) differs(left, right outcome) string {
	if left.status != right.status {
		return "exit status " + itoa(left.status) + " and " + itoa(right.status) + "; ours says: " + right.stderr +
			"; theirs: " + left.stderr
	}
	if left, right := c.live(left), c.live(right); left != right {
		return "output differs" + firstDifference(left, right)
	}
	if c.looseErrors {
		return ""
	}
	if left, right := rpcErrors(left.stderr), rpcErrors(right.stderr); !slices.Equal(left, right) {
		return "errors of machines differ:\n  theirs: " + strings.Join(left, " | ") + "\n  ours:   " +
			strings.Join(right, " | ")
	}
	if (left.stderr == "") != (right.stderr == "") {
		return "only one of them says something on standard error:\n  theirs: " + left.stderr + "\n  ours:   " +
			right.stderr
	}
	return ""
}

func (c comparison) file() string {
	return filepath.Join("testdata", c.name+".txt")
}

func (c comparison) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(c.file(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (c comparison) againstStored(t *testing.T) {
	t.Helper()
	if c.changing {
		if out := c.run(ours(), 0); out.status != 0 && out.stderr == "" {
			t.Errorf("%s: failed without a word", c.line)
		}
		return
	}
	want, err := os.ReadFile(c.file())
	if err != nil {
		t.Fatalf("no expectation: %v", err)
	}
	var got string
	for attempt := range attempts {
		pause(attempt)
		if got = stored(c, c.run(ours(), attempt)); got == string(want) {
			return
		}
	}
	t.Errorf("%s: not as expected%s", c.line, firstDifference(string(want), got))
}

func firstDifference(left, right string) string {
	a, b := strings.Split(left, "\n"), strings.Split(right, "\n")
	for i := range max(len(a), len(b)) {
		one, other := "(nothing)", "(nothing)"
		if i < len(a) {
			one = a[i]
		}
		if i < len(b) {
			other = b[i]
		}
		if one != other {
			return " in line " + itoa(i+1) + ":\n  wanted: " + one + "\n  got:    " + other
		}
	}
	return ""
}
