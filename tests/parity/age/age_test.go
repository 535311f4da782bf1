// Package age lets the original of age and its published vectors judge ours.
package age

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	vectors "c2sp.org/CCTV/age"
	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// examplesEnv names the directory of our example programs; `make test` sets it.
const examplesEnv = "ICHOR_EXAMPLES"

// ours runs our program on some input.
func ours(t *testing.T, input []byte, args ...string) ([]byte, error) {
	t.Helper()

	dir := os.Getenv(examplesEnv)
	require.NotEmpty(t, dir, "%s is not set; run `make test-parity`", examplesEnv)

	var out, errs bytes.Buffer

	cmd := exec.Command(filepath.Join(dir, "age"), args...)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stdout = &out
	cmd.Stderr = &errs

	err := cmd.Run()
	require.NotContains(t, errs.String(), "panicked")

	return out.Bytes(), err
}

func contents() [][]byte {
	var all [][]byte

	for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 300_000} {
		all = append(all, bytes.Repeat([]byte("ichor"), size/5+1)[:size])
	}

	return all
}

func TestTheOriginalOpensWhatWeSeal(t *testing.T) {
	one, err := age.GenerateX25519Identity()
	require.NoError(t, err)

	two, err := age.GenerateX25519Identity()
	require.NoError(t, err)

	for _, content := range contents() {
		sealed, err := ours(t, content, "encrypt", one.Recipient().String(), two.Recipient().String())
		require.NoError(t, err)

		for _, identity := range []age.Identity{one, two} {
			reader, err := age.Decrypt(bytes.NewReader(sealed), identity)
			require.NoError(t, err)

			opened, err := io.ReadAll(reader)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(content, opened), "%d bytes", len(content))
		}
	}
}

func TestWeOpenWhatTheOriginalSeals(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)

	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)

	for _, content := range contents() {
		var sealed bytes.Buffer

		writer, err := age.Encrypt(&sealed, other.Recipient(), identity.Recipient())
		require.NoError(t, err)

		_, err = writer.Write(content)
		require.NoError(t, err)
		require.NoError(t, writer.Close())

		opened, err := ours(t, sealed.Bytes(), "decrypt", identity.String())
		require.NoError(t, err)
		assert.True(t, bytes.Equal(content, opened), "%d bytes", len(content))
	}
}

func TestPublishedVectorsOpenOrAreRefused(t *testing.T) {
	tried := 0

	err := fs.WalkDir(vectors.Vectors, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		file, err := fs.ReadFile(vectors.Vectors, path)
		require.NoError(t, err)

		head, body, found := bytes.Cut(file, []byte("\n\n"))
		if !found {
			return nil
		}

		var (
			identities     []string
			expect, digest string
			skip           bool
		)

		for line := range strings.SplitSeq(string(head), "\n") {
			key, value, _ := strings.Cut(line, ": ")

			switch key {
			case "expect":
				expect = value
			case "payload":
				digest = value
			case "identity":
				identities = append(identities, value)
			case "passphrase", "armored":
				skip = true
			case "compressed":
				reader, err := zlib.NewReader(bytes.NewReader(body))
				require.NoError(t, err)

				body, err = io.ReadAll(reader)
				require.NoError(t, err)
			}
		}

		// Passphrases and armour are not ours.
		if skip || len(identities) == 0 {
			return nil
		}

		tried++

		t.Run(entry.Name(), func(t *testing.T) {
			opened, err := ours(t, body, append([]string{"decrypt"}, identities...)...)

			if expect == "success" {
				require.NoError(t, err)

				sum := sha256.Sum256(opened)
				assert.Equal(t, digest, hex.EncodeToString(sum[:]))
			} else {
				assert.Error(t, err, "expected: %s", expect)
			}
		})

		return nil
	})
	require.NoError(t, err)
	assert.Greater(t, tried, 40)
}
