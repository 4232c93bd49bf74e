package starts

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"

	"lighter/format/index"
	"lighter/test/testkit/site"
)

// direct is what nodes without a hub are configured with.
type direct struct {
	registries string // the path of a configuration that lets a node read the site's registry
	keyFile    string // the path of a key that signs attached indexes
	key        string // its public half
}

// newDirect makes a key and a configuration in a directory.
func newDirect(dir string) (d direct, err error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return d, err
	}
	text, err := index.EncodePrivateKeys([]ed25519.PrivateKey{key})
	if err != nil {
		return d, err
	}
	d = direct{registries: filepath.Join(dir, "registries.toml"), keyFile: filepath.Join(dir, "attach.pem"),
		key: index.FormatKey(public)}
	config := site.RegistryTable + "plain_http = true\n"
	return d, errors.Join(os.WriteFile(d.keyFile, text, 0o600), os.WriteFile(d.registries, []byte(config), 0o600))
}
