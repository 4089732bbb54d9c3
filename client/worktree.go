package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// How git lays out a repository with several worktrees (gitrepository-layout, git-worktree):
//
//	main/.git/                        the repository, at the top of the main worktree
//	main/.git/worktrees/x/commondir   says where the repository is: ../..
//	x/.git                            a file: "gitdir: …/main/.git/worktrees/x"
//	main/sub/.git                     a submodule, a file: "gitdir: ../.git/modules/sub", which has no commondir; its config says core.worktree
//	bare.git/worktrees/x              worktrees may belong to a repository that has no main worktree

// configName is the file whose folder is the root outside of git.
const configName = ".brokerd.yaml"

// maxNested is how many worktrees may lie within each other.
const maxNested = 20

// A checkout is what a .git at the top of a folder says.
type checkout struct {
	repository string // the folder of the repository, which all worktrees share
	linked     bool   // it is one of several worktrees
	file       bool   // .git is a file
}

// findRoot returns the root for a working folder if nobody has named one: see NewPaths.
func findRoot(dir string) (string, error) {
	dir, err := resolve(dir)
	if err != nil {
		return "", err
	}
	for range maxNested {
		root, elsewhere, err := rootAround(dir)
		if err != nil || !elsewhere {
			return root, err
		}
		dir = root
	}
	return "", tooNested(dir)
}

// rootAround is findRoot, or else returns the main worktree of the one that the folder lies in, which may lie in another one's submodule.
func rootAround(dir string) (root string, elsewhere bool, err error) {
	config, submodule := "", ""
	for at := dir; ; at = filepath.Dir(at) {
		c, err := checkoutAt(at)
		if err != nil {
			return "", false, err
		}
		if c != nil {
			home, found, err := c.home()
			switch {
			case err != nil:
				return "", false, err
			case c.linked && found && home != at:
				return home, true, nil
			case !c.submodule(at):
				return at, false, nil
			}
			submodule = at
		}
		if info, err := os.Stat(filepath.Join(at, configName)); config == "" && err == nil && info.Mode().IsRegular() {
			config = at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	for _, found := range []string{submodule, config} {
		if found != "" {
			return found, false, nil
		}
	}
	return dir, false, nil
}

// inMainWorktree returns where a file lies in the main worktree of the repository, if it lies in another one. The name must be free of symlinks.
func inMainWorktree(path string) (string, error) {
	from := path
	for range maxNested {
		top, c, err := moved(from)
		if err != nil || c == nil {
			return path, err
		}
		rest, _ := below(path, top)
		home, found, err := c.home()
		if err != nil {
			return "", err
		}
		path = filepath.Join(home, rest)
		if !found {
			return path, nil
		}
		from = home
	}
	return "", tooNested(path)
}

func tooNested(path string) error {
	return fmt.Errorf("%s lies in more than %d worktrees of git within each other", path, maxNested)
}

// moved returns the innermost folder from here upwards whose files count as those of another one, nil if there is none.
func moved(from string) (top string, c *checkout, err error) {
	for at := from; ; at = filepath.Dir(at) {
		c, err := checkoutAt(at)
		if err != nil {
			return "", nil, err
		}
		if c != nil && (c.linked || c.file && !c.submodule(at)) {
			if home, _, err := c.home(); err != nil || home != at {
				return at, c, err
			}
		}
		if at == filepath.Dir(at) {
			return "", nil, nil
		}
	}
}

// checkoutAt reads the .git of a folder; nil if it has none.
func checkoutAt(dir string) (*checkout, error) {
	git := filepath.Join(dir, ".git")
	info, err := os.Stat(git)
	switch {
	case missing(err) || errors.Is(err, fs.ErrPermission):
		return nil, nil
	case err != nil:
		return nil, err
	case info.IsDir():
		return &checkout{repository: git}, nil
	}
	text, err := os.ReadFile(git)
	if err != nil {
		return nil, err
	}
	own, is := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir:")
	if !is {
		return nil, nil // git would not have it either
	}
	c := &checkout{file: true}
	if c.repository, err = joined(dir, strings.TrimSpace(own)); err != nil {
		return nil, err
	}
	text, err = os.ReadFile(filepath.Join(c.repository, "commondir"))
	if missing(err) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	c.linked = true
	c.repository, err = joined(c.repository, strings.TrimSpace(string(text)))
	return c, err
}

// joined returns what a name means in a folder, with symlinks resolved.
func joined(dir, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = dir + "/" + name
	}
	return resolve(name)
}

// submodule reports whether the folder is where its repository, which is kept elsewhere, says that it is.
func (c *checkout) submodule(at string) bool {
	if !c.file || c.linked {
		return false
	}
	home, found, err := c.home()
	return err == nil && found && home == at
}

// home returns the top of the main worktree. A repository that has none stands for it itself: all of its worktrees agree on that.
func (c *checkout) home() (dir string, found bool, err error) {
	if filepath.Base(c.repository) == ".git" {
		return filepath.Dir(c.repository), true, nil
	}
	text, err := os.ReadFile(filepath.Join(c.repository, "config"))
	if err != nil && !missing(err) {
		return "", false, err
	}
	if top := coreWorktree(string(text)); top != "" {
		dir, err := joined(c.repository, top)
		return dir, err == nil, err
	}
	return c.repository, false, nil
}

// coreWorktree reads core.worktree out of a repository's configuration.
func coreWorktree(text string) string {
	section, found := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if section == "[core]" && strings.EqualFold(strings.TrimSpace(key), "worktree") {
			found = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return found
}

// isNotDir reports whether an error says that something in the middle of a name is no directory.
func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
