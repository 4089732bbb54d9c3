package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Paths turns the names that programs on this machine have for files into the paths of locks, so that one file has one lock
// whatever it is called: by an absolute name or one relative to the working folder, through symlinks, and in whichever worktree of a git repository the copy lies.
// It is safe for concurrent use. Nothing is remembered between calls but the two folders.
type Paths struct {
	dir  string // the working folder
	root string // with symlinks resolved, in the main worktree
}

// An OutsideError says that a file lies outside of the session's root, so that no lock can be about it.
type OutsideError struct {
	Name string // as it was given
	Root string
}

// Error says what to do about it.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("%s is outside of the session's root %s; name a file inside, or another root with BROKERD_ROOT", e.Name, e.Root)
}

// NewPaths returns the paths for a working folder and a session's root. Without a working folder it is that of the process. Without
// a root it is, in this order: $BROKERD_ROOT; in a git repository the top of its main worktree, also if the
// working folder is in another worktree or in a submodule; the nearest folder with a .brokerd.yaml, from the working folder upwards; the working folder.
// A root that is a relative name is one in the working folder. It must be there.
func NewPaths(dir, root string) (*Paths, error) { return Environment{Dir: dir}.Paths(root) }

// Paths returns the paths for the working folder and a session's root, as NewPaths does.
func (e Environment) Paths(root string) (*Paths, error) {
	dir, err := filepath.Abs(e.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the working folder: %w", err)
	}
	if root == "" {
		root = e.get("BROKERD_ROOT")
	}
	if root == "" {
		if root, err = findRoot(dir); err != nil {
			return nil, fmt.Errorf("find the session's root: %w", err)
		}
	}
	p := &Paths{dir: dir}
	if root, err = resolve(p.absolute(root)); err != nil {
		return nil, fmt.Errorf("find the session's root: %w", err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("find the session's root: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("find the session's root: %s is no folder", root)
	}
	if p.root, err = inMainWorktree(root); err != nil {
		return nil, fmt.Errorf("find the session's root: %w", err)
	}
	return p, nil
}

// Root returns the folder that paths are relative to. It need not be there if it belongs to a repository that has no main worktree.
func (p *Paths) Root() string { return p.root }

// Map returns the path of a file, of a directory (which ends in a slash, or is one on disk), or of a glob: the part in front of the first
// segment with a * or ? is mapped, and the rest stays as it is. What does not exist yet has the path that it would have. An *OutsideError
// says that it is outside of the root. The root itself is "**", all that is in it.
func (p *Paths) Map(name string) (string, error) {
	if name == "" {
		return "", errors.New("the name of a file is empty")
	}
	base, rest := splitGlob(name)
	for _, segment := range strings.Split(rest, "/") {
		if segment == ".." {
			return "", fmt.Errorf("%s has a .. after a wildcard, where nobody can say what it means", name)
		}
	}
	found, err := resolve(p.absolute(base))
	if err != nil {
		return "", fmt.Errorf("map %s: %w", name, err)
	}
	dir, err := isDir(found, rest != "" || strings.HasSuffix(name, "/"))
	if err != nil {
		return "", fmt.Errorf("map %s: %w", name, err)
	}
	if found, err = inMainWorktree(found); err != nil {
		return "", fmt.Errorf("map %s: %w", name, err)
	}
	path, inside := below(found, p.root)
	switch {
	case !inside:
		return "", &OutsideError{Name: name, Root: p.root}
	case path == "" && rest == "":
		return "**", nil
	case path == "":
		return rest, nil
	case dir:
		return path + "/" + rest, nil
	}
	return path, nil
}

// MapAll is Map for each of the names; it ends with the first error.
func (p *Paths) MapAll(names ...string) ([]string, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		var err error
		if paths[i], err = p.Map(name); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// absolute puts the working folder in front of a relative name, without a look at what is in the name: behind a symlink, .. is not what stands in front of it.
func (p *Paths) absolute(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return p.dir + "/" + name
}

// splitGlob splits a name in front of its first segment with a wildcard.
func splitGlob(name string) (base, rest string) {
	wild := strings.IndexAny(name, "*?")
	if wild < 0 {
		return name, ""
	}
	cut := strings.LastIndexByte(name[:wild], '/') + 1
	return name[:cut], name[cut:]
}

// isDir reports whether something is a directory, or is to be one: then it must not be anything else.
func isDir(path string, wanted bool) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case missing(err):
		return wanted, nil
	case err != nil:
		return false, err
	case wanted && !info.IsDir():
		return false, fmt.Errorf("%s is no directory", path)
	}
	return info.IsDir(), nil
}

// missing reports whether an error says that there is no such file, be it that one in front of it is no directory.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || err != nil && isNotDir(err)
}

// below returns the path of a file relative to a folder, with / between segments; inside is false if it is not in there.
func below(path, folder string) (relative string, inside bool) {
	if path == folder {
		return "", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// maxLinks is how many symlinks one name may lead through, as in the kernel.
const maxLinks = 40

// resolve follows the symlinks of an absolute name as the kernel does; what does not exist, and what would lie below it, is taken literally. Unlike
// filepath.EvalSymlinks it follows a link that leads to nothing yet: whoever writes there makes the file that it leads to.
func resolve(name string) (string, error) {
	at, todo, links := "/", strings.Split(name, "/"), 0
	for len(todo) > 0 {
		segment := todo[0]
		todo = todo[1:]
		switch segment {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, segment)
		info, err := os.Lstat(next)
		if err != nil && !missing(err) {
			return "", err
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s leads through more than %d symlinks", name, maxLinks)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}
