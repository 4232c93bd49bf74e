package guess

// Bounds of a guess: the image may be hostile.
const (
	// Bytes that are recorded. The bounds of code and data hold for one segment of a program or
	// library.
	maxCode          = 24 << 20  // code
	maxExtensionCode = 6 << 20   // code of a library that a script imports
	maxData          = 64 << 20  // data that ld.so relocates
	maxReadOnly      = 8 << 20   // read-only data
	maxScript        = 1 << 20   // the beginning of any other file: a script, an argument, a module
	maxProgramBytes  = 256 << 20 // all that one program reads

	maxRecordings = 16 // recordings of one image
	maxCommands   = 16 // programs that are looked for in one script
	maxShebangs   = 4  // #! lines followed for one program

	// Files.
	maxLinks  = 40       // symbolic links followed for one path
	maxFinds  = 500_000  // lookups for one guess
	maxDirs   = 20_000   // directories remembered
	maxChunks = 8192     // chunks read for one guess
	maxKept   = 32 << 20 // bytes of chunks kept in memory

	// Programs and libraries.
	maxObjects    = 512  // programs and libraries loaded by one program
	maxConfigs    = 64   // configuration files of ld.so
	maxSearchDirs = 64   // directories of PATH, of /etc/ld.so.conf, and of an object's rpath or runpath
	maxPrograms   = 64   // program headers
	maxDynamic    = 4096 // entries of the dynamic section
	maxNeeded     = 512  // names in the dynamic section: needed libraries and their directories
	maxString     = 4096 // bytes of the path of ld.so, or of a string of the dynamic section

	// Python.
	maxModules  = 4096      // modules imported by one program
	maxNesting  = 100       // depth of modules that import modules
	maxSource   = 256 << 10 // bytes that are read of a source file
	maxScanned  = 16 << 20  // bytes of import statements kept in memory
	maxPackages = 10        // installed packages that get a recording of their own
	minPackage  = 2 << 20   // the least size of such a package, in bytes
)
