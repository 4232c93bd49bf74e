package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// user checks whether this command runs as root.
func (m *machine) user(context.Context) []Finding {
	return first([]rule{
		{os.Geteuid() == 0, OK, "this command runs as root, as a node must", ""},
		{true, Unchecked, "this command does not run as root, so it cannot examine everything", asRoot},
	})
}

// directory checks which users can use the node's root directory.
func (m *machine) directory(context.Context) []Finding {
	var stat unix.Stat_t
	return m.judgeDirectory(stat, unix.Stat(m.config.Root, &stat))
}

func (m *machine) judgeDirectory(stat unix.Stat_t, err error) []Finding {
	root, mode := m.config.Root, stat.Mode&0o7777
	return first([]rule{
		{errors.Is(err, fs.ErrNotExist), OK, root + " does not exist yet: the node makes it", ""},
		{err != nil, Unchecked, fmt.Sprintf("examine %s: %v", root, err), asRoot},
		{stat.Mode&unix.S_IFMT != unix.S_IFDIR, Problem, root + " is not a directory", "give the node another --root"},
		{stat.Uid != 0 || mode&0o022 != 0, Problem,
			fmt.Sprintf("users other than root can write to %s (owner %d, mode %04o): the node refuses it",
				root, stat.Uid, mode),
			"chown root " + root + "; chmod 700 " + root},
		{mode&0o077 != 0, Warning,
			fmt.Sprintf("users other than root can read %s (mode %04o), and the images in it", root, mode),
			"chmod 700 " + root},
		{true, OK, "only root can use " + root, ""},
	})
}

// securityModules checks which security modules the kernel has.
func (m *machine) securityModules(context.Context) []Finding {
	const enforce = "sys/fs/selinux/enforce"
	return first([]rule{
		{m.matches(enforce, "1"), Warning, "SELinux is enforced: containers read images only if their label allows it",
			"let containerd set labels (enable_selinux = true in its CRI configuration); " +
				"ausearch -m avc -ts recent shows what was refused"},
		{m.matches(enforce, ""), OK, "SELinux is permissive, and refuses nothing", ""},
		{m.matches("sys/module/apparmor/parameters/enabled", "Y"), OK,
			"AppArmor is on; a node needs no profile (dmesg | grep apparmor shows what profiles have refused)", ""},
	})
}
