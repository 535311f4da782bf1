// Package config_test lets the original's published library judge how we read, write, merge and generate configuration.
package config_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
)

// streams is how many random configurations are compared.
const streams = 250

type mode string

func (m mode) String() string        { return string(m) }
func (m mode) RequiresInstall() bool { return m == "metal" }
func (m mode) InContainer() bool     { return m == "container" }

// example runs one of the programs under crates/config/examples.
func example(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	dir := os.Getenv("ICHOR_EXAMPLES")
	if dir == "" {
		t.Fatal("ICHOR_EXAMPLES is not set; run `make test-parity`")
	}
	return exec.Command(filepath.Join(dir, name), args...).Output()
}

// ichorctl runs our client; it must succeed.
func ichorctl(t *testing.T, args ...string) {
	t.Helper()
	root := os.Getenv("ICHOR_ROOT")
	if root == "" {
		t.Fatal("ICHOR_ROOT is not set; run `make test-parity`")
	}
	out, err := exec.Command(filepath.Join(root, "bin", "ichorctl"), args...).CombinedOutput()
	require.NoError(t, err, "ichorctl %s: %s", strings.Join(args, " "), out)
}

// random writes random configurations in our encoding and returns their files.
func random(t *testing.T, seed int) []string {
	t.Helper()
	dir := t.TempDir()
	_, err := example(t, "random_configs", fmt.Sprint(streams), dir, fmt.Sprint(seed))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, streams)
	return files
}

// encode writes a configuration anew, without comments.
func encode(t *testing.T, provider config.Provider) []byte {
	t.Helper()
	out, err := provider.Clone().EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	require.NoError(t, err)
	return out
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return text
}

func TestRandomConfigurationsComeBackUnchanged(t *testing.T) {
	for _, file := range random(t, 101) {
		text := read(t, file)
		provider, err := configloader.NewFromBytes(text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, string(text), string(encode(t, provider)))
	}
}

func TestRandomMergesGiveTheSame(t *testing.T) {
	files := random(t, 102)
	merged := 0
	for i := range files[:len(files)-1] {
		ours, oursErr := example(t, "patch_config", files[i], files[i+1])
		patches, err := configpatcher.LoadPatches([]string{"@" + files[i+1]})
		require.NoError(t, err)
		theirs, crashed, err := apply(read(t, files[i]), patches)
		if crashed {
			// The original cannot merge null over a free-form value; ours keeps the value. No verdict.
			continue
		}
		if err != nil {
			require.Error(t, oursErr, "the original refuses %s: %v", files[i], err)
			continue
		}
		require.NoError(t, oursErr, "%s", ours)
		require.Equal(t, string(theirs), string(ours))
		merged++
	}
	require.Greater(t, merged, streams/2)
}

// apply patches a text with the original and says whether that crashed.
func apply(text []byte, patches []configpatcher.Patch) (out []byte, crashed bool, err error) {
	defer func() {
		if recover() != nil {
			crashed = true
		}
	}()
	result, err := configpatcher.Apply(configpatcher.WithBytes(text), patches)
	if err != nil {
		return nil, false, err
	}
	out, err = result.Bytes()
	return out, false, err
}

func TestGenerationIsExactForEveryContract(t *testing.T) {
	dir := t.TempDir()
	for minor := 0; minor <= 12; minor++ {
		version := fmt.Sprintf("v1.%d", minor)
		t.Run(version, func(t *testing.T) {
			file := filepath.Join(dir, version+"-secrets.yaml")
			ichorctl(t, "gen", "secrets", "--talos-version", version, "-o", file)
			bundle, err := secrets.LoadBundle(file)
			require.NoError(t, err)
			require.NoError(t, bundle.Validate())

			contract, err := config.ParseContractFromVersion(version)
			require.NoError(t, err)
			input, err := generate.NewInput("base", "https://base:6443", "1.35.0",
				generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle),
				generate.WithInstallDisk("/dev/sda"), generate.WithInstallImage("ghcr.io/siderolabs/installer:v1.12.1"))
			require.NoError(t, err)

			for _, commented := range []bool{false, true} {
				out := filepath.Join(dir, fmt.Sprintf("%s-%t", version, commented))
				ichorctl(t, "gen", "config", "base", "https://base:6443", "--talos-version", version, "--with-secrets", file,
					fmt.Sprintf("--with-docs=%t", commented), fmt.Sprintf("--with-examples=%t", commented), "--output", out)
				for name, role := range map[string]machine.Type{
					"controlplane.yaml": machine.TypeControlPlane, "worker.yaml": machine.TypeWorker,
				} {
					text := read(t, filepath.Join(out, name))
					theirs, err := input.Config(role)
					require.NoError(t, err)
					provider, err := configloader.NewFromBytes(text)
					require.NoError(t, err, "%s", text)
					require.Equal(t, string(encode(t, theirs)), string(encode(t, provider)), name)
					if !commented {
						require.Equal(t, string(encode(t, theirs)), string(text), name)
					}
					warnings, err := provider.Validate(mode("metal"), validation.WithStrict())
					require.NoError(t, err, name)
					require.Empty(t, warnings, name)
				}
				client, err := clientconfig.Open(filepath.Join(out, "talosconfig"))
				require.NoError(t, err)
				require.Equal(t, "base", client.Context)
				again, err := client.Bytes()
				require.NoError(t, err)
				require.Equal(t, string(again), string(read(t, filepath.Join(out, "talosconfig"))))
			}
		})
	}
}

// TestWrongConfigurationsAreWrongForBoth reads the corpus of our own tests.
func TestWrongConfigurationsAreWrongForBoth(t *testing.T) {
	root := os.Getenv("ICHOR_ROOT")
	if root == "" {
		t.Fatal("ICHOR_ROOT is not set; run `make test-parity`")
	}
	dir := filepath.Join(root, "crates", "config", "tests", "wrong")
	expected := map[string]string{}
	for _, block := range strings.Split("\n"+string(read(t, filepath.Join(dir, "expected.txt"))), "\n## ")[1:] {
		title, body, _ := strings.Cut(block, "\n")
		expected[title] = body
	}
	count := 0
	for _, block := range strings.Split(string(read(t, filepath.Join(dir, "cases.txt"))), "\n## ")[1:] {
		head, body, _ := strings.Cut(block, "\n")
		at := strings.LastIndex(head, " [")
		title, flags := head[:at], strings.Fields(strings.Trim(head[at:], " []"))
		ours := false
		for _, line := range strings.Split(expected[title], "\n") {
			place := len(line) > 4 && strings.HasPrefix(line, "    ") && line[4] >= '0' && line[4] <= '9'
			ours = ours || place && !strings.Contains(line, " warning: ")
		}
		// A warning that strictness made an error keeps the word.
		ours = ours || len(flags) > 2
		require.Equal(t, ours, refused(caseText(flags[0], body), flags), "%s", title)
		count++
	}
	require.Greater(t, count, 150)
}

// caseText builds the text of a case the way our own test does.
func caseText(role, body string) []byte {
	lines := map[byte][]string{}
	for _, line := range strings.Split(body, "\n") {
		if line != "" {
			lines[line[0]] = append(lines[line[0]], strings.TrimPrefix(line[1:], " "))
		}
	}
	if raw := lines['R']; len(raw) > 0 {
		return []byte(strings.Join(raw, "\n"))
	}
	key := "a2V5"
	if role == "worker" {
		key = `""`
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "version: v1alpha1\nmachine:\n    type: %s\n    token: t\n    ca:\n        crt: Y2E=\n        key: %s\n", role, key)
	for _, line := range lines['M'] {
		fmt.Fprintf(&text, "    %s\n", line)
	}
	text.WriteString("cluster:\n    controlPlane:\n        endpoint: https://10.0.0.1:6443\n")
	for _, line := range lines['C'] {
		fmt.Fprintf(&text, "    %s\n", line)
	}
	if documents := lines['D']; len(documents) > 0 {
		text.WriteString("---\n" + strings.Join(documents, "\n") + "\n")
	}
	return text.Bytes()
}

// refused says whether the original does not take a text.
func refused(text []byte, flags []string) bool {
	provider, err := configloader.NewFromBytes(text)
	if err != nil {
		return true
	}
	var options []validation.Option
	if len(flags) > 2 {
		options = append(options, validation.WithStrict())
	}
	_, err = provider.Validate(mode(flags[1]), options...)
	return err != nil
}
