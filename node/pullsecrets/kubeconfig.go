package pullsecrets

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// api sends requests to a Kubernetes API server. Files of the kubeconfig that are replaced while it
// is used are read again.
type api struct {
	url  string
	user user
	http *http.Client
}

// kubeconfig is what is read of a kubeconfig.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	} `yaml:"users"`
}

type cluster struct {
	Server     string `yaml:"server"`
	CA         string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
}

type user struct {
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	Exec      any    `yaml:"exec"`
}

// openAPI reads a kubeconfig. Errors quote nothing of it.
func openAPI(path string) (*api, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var config kubeconfig
	if yaml.Unmarshal(b, &config) != nil {
		return nil, fmt.Errorf("the kubeconfig %s is no YAML as kubectl reads it", path)
	}
	a, err := config.open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig %s: %w", path, err)
	}
	return a, nil
}

// open returns the API of the current context. Paths are relative to dir.
func (k *kubeconfig) open(dir string) (*api, error) {
	c, u, err := k.current()
	if err != nil {
		return nil, err
	}
	for _, p := range []*string{&c.CA, &u.Cert, &u.Key, &u.TokenFile} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	switch {
	case !strings.HasPrefix(c.Server, "https://"):
		return nil, errors.New("its server is no https:// URL")
	case c.Insecure:
		return nil, errors.New("it has insecure-skip-tls-verify: name the authority of the API server instead")
	case u.Exec != nil:
		return nil, errors.New("its user has exec, which is not supported: name a kubeconfig with a client " +
			"certificate, a token or a tokenFile")
	}
	a := &api{url: strings.TrimSuffix(c.Server, "/"), user: u}
	roots, err := rootsOf(c)
	if err != nil {
		return nil, err
	}
	if _, err := a.certificate(); err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate() }
	a.http = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config,
		TLSHandshakeTimeout: requestTimeout, ResponseHeaderTimeout: requestTimeout, MaxConnsPerHost: 8,
		IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return a, nil
}

// current returns the cluster and the user of the current context.
func (k *kubeconfig) current() (c cluster, u user, err error) {
	for _, context := range k.Contexts {
		if context.Name != k.Current {
			continue
		}
		for _, named := range k.Clusters {
			if named.Name == context.Context.Cluster {
				c = named.Cluster
			}
		}
		for _, named := range k.Users {
			if named.Name == context.Context.User {
				u = named.User
			}
		}
		return c, u, nil
	}
	return c, u, fmt.Errorf("it has no context %q (current-context)", k.Current)
}

// rootsOf returns the authorities of a cluster; nil: the machine's.
func rootsOf(c cluster) (*x509.CertPool, error) {
	if c.CA == "" && c.CAData == "" {
		return nil, nil
	}
	pem, err := contentOf(c.CA, c.CAData)
	roots := x509.NewCertPool()
	if err == nil && !roots.AppendCertsFromPEM(pem) {
		err = errors.New("there is no certificate in PEM")
	}
	if err != nil {
		return nil, fmt.Errorf("certificate-authority: %w", err)
	}
	return roots, nil
}

// contentOf returns decoded data, or if there is none, the content of a file.
func contentOf(path, data string) ([]byte, error) {
	if data == "" {
		return os.ReadFile(path)
	}
	b, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return nil, errors.New("the data is no base64")
	}
	return b, nil
}

// certificate returns the client's certificate, or an empty one if there is none. The kubelet
// replaces the file.
func (a *api) certificate() (*tls.Certificate, error) {
	u := a.user
	if u.Cert == "" && u.CertData == "" {
		return &tls.Certificate{}, nil
	}
	cert, err := contentOf(u.Cert, u.CertData)
	if err != nil {
		return nil, fmt.Errorf("client-certificate: %w", err)
	}
	key, err := contentOf(u.Key, u.KeyData)
	if err != nil {
		return nil, fmt.Errorf("client-key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client-certificate and client-key: %w", err)
	}
	return &pair, nil
}

// token returns the client's token, or "". The kubelet replaces the file.
func (a *api) token() (string, error) {
	if a.user.TokenFile == "" {
		return a.user.Token, nil
	}
	b, err := os.ReadFile(a.user.TokenFile)
	return cmp.Or(strings.TrimSpace(string(b)), a.user.Token), err
}

// nodeName returns the node of a kubelet's certificate, or "".
func (a *api) nodeName() string {
	pair, err := a.certificate()
	if err != nil || len(pair.Certificate) == 0 {
		return ""
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return ""
	}
	name, _ := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if name == cert.Subject.CommonName {
		return ""
	}
	return name
}
