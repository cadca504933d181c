"""`python -m parrot_gateway`."""

from parrot_gateway.main import main

if __name__ == "__main__":
    main()
