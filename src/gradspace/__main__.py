from gradspace.cli import main

main()
