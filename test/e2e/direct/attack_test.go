//go:build e2e

package direct

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/stargz"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// attackFormats are the formats in which the attack is played, each with a function that pushes a
// layout with what the format needs besides.
var attackFormats = map[string]func(t *testing.T, s *site.Site, dir, name string){
	"estargz":     pushDir,
	"zstdchunked": pushDir,
	"soci-v1": func(t *testing.T, s *site.Site, dir, name string) {
		pushDir(t, s, dir, name)
		pushIndex(t, dir, strings.TrimSuffix(site.Reference(name), ":latest"), 0)
	},
	"soci-v2": func(t *testing.T, s *site.Site, dir, name string) {
		pushDir(t, s, dir, name) // makes the repository
		bindIndex(t, dir, strings.TrimSuffix(site.Reference(name), ":latest"), 0)
		pushDir(t, s, dir, name)
	},
}

func pushDir(t *testing.T, s *site.Site, dir, name string) {
	t.Helper()
	if err := s.Push(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}
}

// play makes two images in a format and pushes them: the victim, and the attacker's, whose config
// has the diffIDs of the victim's layers. The file /opt/who says whose files an image shows.
func play(t *testing.T, s *site.Site, format, victim, attacker string) {
	t.Helper()
	dir := t.TempDir()
	of := func(who string) string {
		plain, lazy := filepath.Join(dir, who), filepath.Join(dir, who+"-lazy")
		err := layout.Extend(images.Dir("base"), plain,
			func(l *layout.Layer) error { return l.File("opt/who", []byte(who+" "+format)) })
		if strings.HasPrefix(format, "soci") {
			lazy = plain
		} else if err == nil {
			o := stargz.Options{Format: stargz.EStargz}
			if format == "zstdchunked" {
				o.Format = stargz.ContainersZstd
			}
			err = layout.Lazy(t.Context(), plain, lazy, o)
		}
		if err != nil {
			t.Fatal(err)
		}
		return lazy
	}
	good, evil := of("victim"), of("attacker")
	config, err := layout.Config(good)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := layout.Manifest(evil)
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Write(evil, manifest, config); err != nil {
		t.Fatal(err)
	}
	attackFormats[format](t, s, good, victim)
	attackFormats[format](t, s, evil, attacker)
}

// The table of an untrusted repository never speaks for another image: the attacker's image is
// pulled as usual, and containerd finds that its layers have other diffIDs.
func TestAttackFromAnUntrustedRepository(t *testing.T) {
	s := start(t, site.Options{Hubs: []string{}}, "good/*")
	for format := range attackFormats {
		victim, attacker := "good/"+format, "bad/"+format
		play(t, s, format, victim, attacker)
		_, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(attacker))
		if err == nil || !strings.Contains(err.Error(), "wrong diff id") {
			t.Errorf("%s: the pull of the attacker's image: %v", format, err)
		}
		if moved := pull(t, s, site.Reference(victim)); moved > images.Size(t, "base")/4 {
			t.Errorf("%s: the pull of the victim's image received %d bytes, want the tables", format, moved)
		}
		want := "victim " + format
		for _, name := range []string{victim, attacker} { // the latter's layers are there already
			if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference(name)); err != nil {
				t.Error(err)
			}
			if out := run(t, s, site.Lighter, site.Reference(name), "cat", "/opt/who"); out != want {
				t.Errorf("%s: %s shows the files of %q", format, name, out)
			}
		}
	}
}

// If the attacker may push to a repository that is trusted, the node finds it when it reads the
// layers: it reports the tree, and never mounts it again, also after a restart. Pulls of the
// victim's image work once the attacker's image is removed.
func TestAttackFromATrustedRepository(t *testing.T) {
	config := filepath.Join(t.TempDir(), "node.toml")
	configure(t, config, trusting("lazy/*"), quiet())
	s := startAt(t, site.Options{Hubs: []string{}}, config)
	for format := range attackFormats {
		victim, attacker := "lazy/good-"+format, "lazy/bad-"+format
		play(t, s, format, victim, attacker)
		pull(t, s, site.Reference(attacker))
		if out := run(t, s, site.Lighter, site.Reference(attacker), "cat", "/opt/who"); out != "attacker "+format {
			t.Fatalf("%s: %q: the attack does not work any more", format, out)
		}
	}
	running, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("lazy/bad-estargz"),
		"sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	configure(t, config, trusting("lazy/*"))
	restart(t, s)
	awaitWrong(t, s, len(attackFormats))
	restart(t, s)
	checkReported(t, s)
	if out, err := running.Exec(t.Context(), "cat", "/bin/true"); err != nil || out == "" {
		t.Errorf("the container that runs cannot read its files: %v", err)
	}
	if err := running.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	for format := range attackFormats {
		victim, attacker := site.Reference("lazy/good-"+format), site.Reference("lazy/bad-"+format)
		_, err := s.Machine.Run(t.Context(), site.Lighter, attacker, "cat", "/opt/who")
		if err == nil || !strings.Contains(err.Error(), "never mounted again") {
			t.Errorf("%s: a container of the attacker's image: %v", format, err)
		}
		if err := s.Machine.RemoveImage(t.Context(), attacker); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, attacker); err == nil {
			t.Errorf("%s: the attacker's image is pulled again", format)
		}
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, victim); err != nil {
			t.Error(err)
		}
		for _, i := range sitetest.Status(t, s).Images {
			if !i.Lazy {
				t.Errorf("%s: image %+v is not lazy", format, i)
			}
		}
		if out := run(t, s, site.Lighter, victim, "cat", "/opt/who"); out != "victim "+format {
			t.Errorf("%s: the victim's image shows the files of %q", format, out)
		}
	}
}

// awaitWrong waits until a number of trees are found to be wrong.
func awaitWrong(t *testing.T, s *site.Site, n int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Second) {
		st := sitetest.Status(t, s)
		if st.Direct.Wrong == n && st.Direct.Unverified == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("status %+v, want %d wrong trees", st.Direct, n)
		}
	}
}

// checkReported checks that an administrator sees the attack.
func checkReported(t *testing.T, s *site.Site) {
	t.Helper()
	if st := sitetest.Status(t, s); len(st.Lost) != len(attackFormats) {
		t.Errorf("broken trees %+v, want that of each format", st.Lost)
	}
	for _, command := range []string{"status", "doctor"} {
		out, _ := s.Machine.Lighter(t.Context(), command)
		for format := range attackFormats {
			if want := fmt.Sprintf("%s was read, and the layer differs from its table", "lazy/bad-"+format); !strings.
				Contains(out, want) {
				t.Errorf("lighter %s does not say %q:\n%s", command, want, out)
			}
		}
	}
}

// Images of repositories that nobody trusts start lazily once the node has read their layers. The
// attacker's never does.
func TestVerifiedRepositories(t *testing.T) {
	s := startWith(t, site.Options{Hubs: []string{}}, "direct_verified = [\"**\"]")
	play(t, s, "zstdchunked", "any/good", "any/bad")
	good, bad := site.Reference("any/good"), site.Reference("any/bad")
	pull(t, s, good)
	if st := sitetest.Status(t, s); len(st.Images) != 1 || st.Images[0].Lazy {
		t.Errorf("the first pull: images %+v, want one that is not lazy", st.Images)
	}
	awaitVerified(t, s)
	if err := s.Machine.RemoveImage(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if moved := pull(t, s, good); moved > images.Size(t, "base")/4 {
		t.Errorf("the pull received %d bytes, want the tables", moved)
	}
	if st := sitetest.Status(t, s); len(st.Images) != 1 || !st.Images[0].Lazy {
		t.Errorf("images %+v, want one that is lazy", st.Images)
	}
	compare(t, s, good)
	if err := s.Machine.RemoveImage(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.Machine.Pull(t.Context(), site.Lighter, bad)
		if err == nil || !strings.Contains(err.Error(), "wrong diff id") {
			t.Errorf("a pull of the attacker's image: %v", err)
		}
		awaitVerified(t, s)
	}
}

// awaitVerified waits until no image waits.
func awaitVerified(t *testing.T, s *site.Site) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); sitetest.Status(t, s).Direct.Waiting > 0; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("status %+v", sitetest.Status(t, s).Direct)
		}
	}
}
