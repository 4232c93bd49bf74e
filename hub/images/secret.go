package images

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"

	"lighter/hub/registries"
	"lighter/wire"
)

// login has the credentials that a client gave for an image's source. The catalog has them until
// the job has ended, sealed with AES-256-GCM. All processes of a hub have the key.
type login struct {
	Username, Password, Token, RegistryToken string
}

func loginOf(add wire.Add) login {
	return login{add.Username, add.Password, add.Token, add.RegistryToken}
}

// access returns how a source is read with the login.
func (l login) access(plainHTTP bool) registries.Access {
	return registries.Access{PlainHTTP: plainHTTP, Login: authn.AuthConfig{Username: l.Username, Password: l.Password,
		IdentityToken: l.Token, RegistryToken: l.RegistryToken}}
}

// sealer encrypts with Config.Secret.
func sealer(secret []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal returns the sealed login of a job, or nil if the login is empty.
func (l login) seal(secret []byte, job string) ([]byte, error) {
	if l == (login{}) {
		return nil, nil
	}
	plain, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	aead, err := sealer(secret)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, plain, []byte(job)), nil
}

// unseal is the reverse of seal.
func unseal(secret []byte, job string, sealed []byte) (l login, err error) {
	if len(sealed) == 0 {
		return l, nil
	}
	aead, err := sealer(secret)
	if err != nil {
		return l, err
	}
	plain, err := aead.Open(nil, nil, sealed, []byte(job))
	if err != nil {
		return l, errors.New("the job's login was sealed with another key of the hub: add the image again")
	}
	if err := json.Unmarshal(plain, &l); err != nil {
		return l, fmt.Errorf("parse the job's login: %w", err)
	}
	return l, nil
}
