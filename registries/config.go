package registries

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
)

// Registry is a table [[registry]] of a configuration. It is about one registry, or about all whose
// host names match a pattern: how they are reached, and as whom.
type Registry struct {
	Host string `toml:"host" comment:"HOST, HOST:PORT, or a pattern in which * is any part of a name between two dots: *.dkr.ecr.*.amazonaws.com. Without a port it is for all ports. If several tables match a host, the most specific one is used."`

	Private   bool   `toml:"private" comment:"The registry may have an address that is not public. Everybody who may name images can make this process connect to it."`
	PlainHTTP bool   `toml:"plain_http" comment:"The registry may be read without TLS, also with the login of this table."`
	CA        string `toml:"ca" comment:"File with the certificates (PEM) of the authorities that are trusted for this registry, in addition to the machine's. A changed file is used after a restart."`

	RequestsPerSecond float64 `toml:"requests_per_second" comment:"Requests that each process sends to a host in a second, on average. 0: no limit."`
	Connections       int64   `toml:"connections" comment:"Layers that each process reads from a host at a time. 0: no limit."`

	Logins string `toml:"logins" comment:"The login for the registry, one of logins, helper, plugin, username with password_file, and token_file. logins: a file as Docker's config.json, with auths, credHelpers and credsStore. The login with the longest matching path is used. Only this process's user should be able to read it and the other files. Changed files are read again."`
	Helper string `toml:"helper" comment:"A Docker credential helper: the NAME of a program docker-credential-NAME, or its absolute path."`

	Plugin             []string `toml:"plugin" comment:"A credential provider plugin of the kubelet: its program and arguments. It is asked for the images of host, as with matchImages."`
	PluginCacheMinutes int64    `toml:"plugin_cache_minutes" comment:"For how many minutes an answer of the plugin is used, if it does not say that (the kubelet's defaultCacheDuration)."`
	Env                []string `toml:"env" comment:"Environment of helper or plugin: NAME=VALUE, or NAME for a variable that this process has. They also get PATH, HOME, TMPDIR, and the variables for proxies and certificates."`

	Username     string `toml:"username" comment:"User whose password is in password_file."`
	PasswordFile string `toml:"password_file" comment:"File with the password, one line."`
	TokenFile    string `toml:"token_file" comment:"File with a bearer token, one line, that the registry accepts as it is."`
}

// Check returns an error if a table is invalid. The error has one line.
func Check(all []Registry) error {
	for i := range all {
		r := &all[i]
		if err := r.check(); err != nil {
			return fmt.Errorf("registry %d (%s): %w", i+1, r.Host, err)
		}
		same := func(other Registry) bool { return parsePattern(other.Host) == parsePattern(r.Host) }
		if slices.ContainsFunc(all[:i], same) {
			return fmt.Errorf("registry %d (%s): another table is for this host: put the settings into one table", i+1,
				r.Host)
		}
	}
	return nil
}

func (r *Registry) check() error {
	inBudget := func(n float64) bool { return n >= 0 && n <= maxBudget } // NaN is not
	switch {
	case !parsePattern(r.Host).valid():
		return errors.New("host: want HOST, HOST:PORT, or a pattern such as *.example.org")
	case !inBudget(r.RequestsPerSecond) || !inBudget(float64(r.Connections)):
		return fmt.Errorf("requests_per_second and connections: want 0 to %d", maxBudget)
	}
	return r.checkLogin()
}

// HasLogin reports whether a table names a login.
func (r *Registry) HasLogin() bool { return r.logins() > 0 }

// logins returns how many logins a table names.
func (r *Registry) logins() (ways int) {
	for _, isSet := range []bool{r.Logins != "", r.Helper != "", len(r.Plugin) > 0, r.PasswordFile != "",
		r.TokenFile != ""} {
		if isSet {
			ways++
		}
	}
	return ways
}

// checkLogin returns an error if the keys about the login do not go together.
func (r *Registry) checkLogin() error {
	isWrong := func(s string) bool { return s == "" || strings.HasPrefix(s, "=") || strings.ContainsRune(s, 0) }
	switch {
	case r.logins() > 1:
		return errors.New("set only one of logins, helper, plugin, password_file and token_file")
	case (r.Username == "") != (r.PasswordFile == ""):
		return errors.New("username and password_file: set both or none")
	case len(r.Plugin) > 0 && r.Plugin[0] == "":
		return errors.New("plugin: want a program and its arguments")
	case r.PluginCacheMinutes < 0 || r.PluginCacheMinutes > int64(longestAnswer.Minutes()):
		return fmt.Errorf("plugin_cache_minutes: want 0 to %d", int64(longestAnswer.Minutes()))
	case len(r.Env) > 0 && r.Logins == "" && r.Helper == "" && len(r.Plugin) == 0:
		return errors.New("env is for helper, plugin, and the helpers of logins")
	case slices.ContainsFunc(r.Env, isWrong):
		return errors.New("env: want NAME=VALUE or NAME")
	case r.Helper != "":
		if _, err := helperProgram(r.Helper, nil); err != nil {
			return fmt.Errorf("helper: %w", err)
		}
	}
	return nil
}

// maxBudget bounds requests_per_second and connections.
const maxBudget = 1_000_000

// pattern matches hosts.
type pattern struct {
	host string // lower case; without the brackets of an IPv6 address
	port string // empty: all ports
}

// dockerHub is the name of Docker Hub in references. Others lead to it, too.
const dockerHub = "docker.io"

// dockerHubs are other hosts of Docker Hub.
var dockerHubs = []string{"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}

// IsDockerHub reports whether a HOST is one of those that Docker Hub's registry answers at.
func IsDockerHub(host string) bool { return slices.Contains(dockerHubs, strings.ToLower(host)) }

// parsePattern parses HOST, HOST:PORT or a pattern of these.
func parsePattern(text string) pattern {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = text, ""
		if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			host = text[1 : len(text)-1]
		}
	}
	host = strings.ToLower(host)
	if slices.Contains(dockerHubs, host) {
		host = dockerHub
	}
	return pattern{host, port}
}

func (p pattern) valid() bool {
	return p.host != "" && !strings.ContainsAny(p.host, "/?[]\\ @") && !strings.ContainsAny(p.port, "*?[]\\ /@")
}

func (p pattern) isGlob() bool { return strings.Contains(p.host, "*") }

// matches reports whether p matches a host, which is no pattern. Each * of p matches a part of one
// label of the host's name.
func (p pattern) matches(host pattern) bool {
	if p.port != "" && p.port != host.port {
		return false
	}
	if !p.isGlob() {
		return p.host == host.host
	}
	labels, of := strings.Split(p.host, "."), strings.Split(host.host, ".")
	if len(labels) != len(of) {
		return false
	}
	for i, label := range labels {
		if ok, err := path.Match(label, of[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// compare orders patterns: the more specific one is first.
func (p pattern) compare(q pattern) int {
	rank := func(p pattern) int {
		n := len(p.host)
		if p.port != "" {
			n += 1 << 10
		}
		if !p.isGlob() {
			n += 1 << 20
		}
		return -n
	}
	return rank(p) - rank(q)
}
